//! Which packages, from where, in which version: the pins.

use super::bundle::{Bundle, Pin};

/// A Debian package that tests read files of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// Debian's name of the release, or of its backports.
    pub(crate) suite: &'static str,
    /// The version that was read when this row was written.
    pub(crate) version: &'static str,
    /// SHA-256 of that version's archive, by architecture; `all` serves every one.
    pub(crate) sha256: &'static [(&'static str, &'static str)],
    /// A file that the package is fetched for, below its root.
    pub(crate) holds: &'static str,
}

/// A package of C headers and the variable that tells tests where its `usr/include` is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    pub(crate) package: Package,
    pub(crate) variable: &'static str,
    /// `major.minor` of a machine's own headers that serve as well.
    pub(crate) series: Option<(u32, u32)>,
}

/// libibverbs as three releases of Debian ship it, the last with `ibv_reg_mr_ex`.
const fn libibverbs(
    id: &'static str,
    variable: &'static str,
    suite: &'static str,
    version: &'static str,
    sha256: &'static [(&'static str, &'static str)],
) -> Headers {
    Headers {
        package: Package {
            id,
            name: "libibverbs-dev",
            suite,
            version,
            sha256,
            holds: "usr/include/infiniband/verbs.h",
        },
        variable,
        series: None,
    }
}

/// The three eras of the driver's interface, as Debian ships them, and libibverbs.
pub(crate) const HEADERS: [Headers; 6] = [
    Headers {
        package: Package {
            id: "headers-6.1",
            name: "linux-libc-dev",
            suite: "bookworm",
            version: "6.1.176-1",
            sha256: &[(
                "amd64",
                "8bb258735b9dffbb111da778ebdd024750878e435ffd9dfcadcb6762ede6b4cf",
            )],
            holds: "usr/include/misc/habanalabs.h",
        },
        variable: "GAUDI_HEADERS_6_1",
        series: Some((6, 1)),
    },
    Headers {
        package: Package {
            id: "headers-6.12",
            name: "linux-libc-dev",
            suite: "trixie",
            version: "6.12.107-1",
            sha256: &[(
                "all",
                "dc68dd53c7356598d005866da0d19d7bd33af2a62971aced624cdf04492902b4",
            )],
            holds: "usr/include/drm/habanalabs_accel.h",
        },
        variable: "GAUDI_HEADERS_6_12",
        series: None,
    },
    Headers {
        package: Package {
            id: "headers-7",
            name: "linux-libc-dev",
            suite: "trixie-backports",
            version: "7.3.4-1~bpo13+1",
            sha256: &[(
                "all",
                "b3a4538fca67081c8606a93f37521d0eb74ac75996a02f3321a6b27f978e10a8",
            )],
            holds: "usr/include/drm/habanalabs_accel.h",
        },
        variable: "GAUDI_HEADERS_7",
        series: None,
    },
    libibverbs(
        "libibverbs-44",
        "GAUDI_VERBS_HEADERS_44",
        "bookworm",
        "44.0-2",
        &[(
            "amd64",
            "78e87d12fb642bc41b04cb2e2f3f2f23cee14b89978a846b83defe945f388f72",
        )],
    ),
    libibverbs(
        "libibverbs-56",
        "GAUDI_VERBS_HEADERS_56",
        "trixie",
        "56.1-1",
        &[(
            "amd64",
            "3833759895e1435663a0bc2f9d9d82feb467f8cf8f19afb57c75b5c1f6bb1f1a",
        )],
    ),
    libibverbs(
        "libibverbs-65",
        "GAUDI_VERBS_HEADERS_65",
        "sid",
        "65.0-1.1",
        &[(
            "amd64",
            "c36f57d9b11d48827eb0e01c9c0e353984620bcf741fa3b13a039b53ecca6a67",
        )],
    ),
];

/// UCX with its headers, which a benchmark's peer is compiled against, and the C library that it runs on.
const UCX: [(&str, &str, &str); 3] = [
    (
        "libucx0",
        "1.18.1+ds-2+b1",
        "260ad6438658e55b37dff4ceb1891bf6bb816cedd14b815ddc3f4dffea55e855",
    ),
    (
        "libucx-dev",
        "1.18.1+ds-2+b1",
        "353636f373a44f7ed0f30b153c44c4af013a99ac15f6eb6183272933ae357253",
    ),
    (
        "libc6",
        "2.41-12+deb13u4",
        "967aa62605721081c3eb2a17650611a792aa802d76a6511d1840242623d204c9",
    ),
];

/// UCX's files as one tree. Of what it depends on, its base library needs the C library alone.
pub(crate) fn ucx() -> Bundle {
    let packages = UCX.map(|(name, version, sha256)| Pin {
        name: name.to_owned(),
        version: version.to_owned(),
        sha256: sha256.to_owned(),
    });
    Bundle {
        id: "ucx".to_owned(),
        suites: vec!["trixie".to_owned()],
        packages: packages.to_vec(),
        closure: false,
        without: Vec::new(),
        release: None,
        slice: None,
    }
}

/// The compiler of `rust-version` in Cargo.toml, and its cargo.
const RUST: [(&str, &str, &str); 3] = [
    (
        "rustc",
        "1.85.1+dfsg1-1+deb13u1",
        "8dc8db527ef0e4e64c1361281c123c461b768c148d5308f841ef47c7b90b19d4",
    ),
    (
        "libstd-rust-dev",
        "1.85.1+dfsg1-1+deb13u1",
        "f10847d21f156e700c16fede486e404d078183197187406b4b512ccc92468adb",
    ),
    (
        "cargo",
        "1.85.1+dfsg1-1+deb13u1",
        "673120ed6dff1aa3626199d3768bdddabe3124da90459f4b65da2ff5d66de234",
    ),
];

/// rustc and cargo as one tree, with the libraries that they run on. The machine's linker serves them, so a C compiler is left out.
pub(crate) fn rust() -> Bundle {
    let packages = RUST.map(|(name, version, sha256)| Pin {
        name: name.to_owned(),
        version: version.to_owned(),
        sha256: sha256.to_owned(),
    });
    Bundle {
        id: "rust".to_owned(),
        suites: vec!["trixie".to_owned()],
        packages: packages.to_vec(),
        closure: true,
        without: [
            "gcc-14_",
            "gcc-14-x86",
            "cpp",
            "binutils",
            "libgcc-14-dev",
            "libc6-dev",
            "linux-libc-dev",
            "perl",
        ]
        .map(str::to_owned)
        .to_vec(),
        release: None,
        slice: None,
    }
}

impl Package {
    /// The pinned digest for an architecture, where there is one.
    pub(crate) fn digest(&self, architecture: &str) -> Option<&'static str> {
        self.sha256
            .iter()
            .find(|(name, _)| *name == architecture || *name == "all")
            .map(|(_, digest)| *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_is_a_whole_digest_and_every_id_and_variable_is_its_own() {
        for (index, row) in HEADERS.iter().enumerate() {
            for (_, digest) in row.package.sha256 {
                let whole =
                    digest.len() == 64 && digest.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
                assert!(whole, "{}: {digest} is no SHA-256", row.package.id);
            }
            for other in &HEADERS[..index] {
                assert_ne!(row.package.id, other.package.id, "ids name one package each");
                assert_ne!(row.variable, other.variable, "variables name one folder each");
            }
        }
        let pinned = HEADERS.map(|row| row.package.digest("arm64").is_some());
        assert_eq!(
            pinned,
            [false, true, true, false, false, false],
            "`all` serves arm64, amd64's archive does not"
        );
    }
}
