//! The socket between the two processes, and the cable between two software NICs.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gaudi::sys::{fd::errno_of, poll::readable};
use gaudi::verbs::{Framed, Stream};
use gaudi::{Error, ErrorKind};

use crate::control::Control;

/// Timeout of the word that identifies a connection as the cable; the client sends it at once.
const WORD: Duration = Duration::from_secs(2);
/// The longest sleep between two checks of a deadline.
const STEP: Duration = Duration::from_secs(60);

/// A connected socket, by how this end came to it.
pub(super) enum Wire {
    /// To the process that this one started.
    Parent(UnixStream),
    /// To the process that started this one.
    Child(UnixStream),
    Connected(TcpStream),
    /// With the listener and the address of its peer.
    Accepted(TcpStream, TcpListener, IpAddr),
}

const CONNECT: &str = "connect";
/// The kind of the frame that identifies a connection as the cable.
const CABLE: u16 = 33;

/// Resolves a name with a timeout: a name server may never answer.
fn resolve(address: &str, timeout: Duration) -> Result<Vec<SocketAddr>> {
    let failed = |why: String| {
        Error::new(ErrorKind::Io, CONNECT)
            .because(format!("cannot resolve {address}: {why}"))
            .helped_by("check the name: getent hosts HOST; or give the address as a number")
    };
    let (sender, receiver) = mpsc::channel();
    let name = address.to_owned();
    // The resolver cannot be interrupted: the thread ends when it does.
    std::thread::spawn(move || {
        let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The caller may have timed out.
        let _ = sender.send(found);
    });
    let found = match receiver.recv_timeout(timeout) {
        Ok(found) => found.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(Error::timed_out("resolve the name of the peer").into()),
    };
    if found.is_empty() {
        return Err(failed("the name has no address".to_owned()).into());
    }
    Ok(found)
}

/// Returns the error of a failed connect, by its cause.
fn not_connected(to: SocketAddr, error: io::Error, timeout: Duration) -> Error {
    let kind = error.kind();
    let found = Error::from_errno(CONNECT, errno_of(error));
    match kind {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::new(ErrorKind::TimedOut, CONNECT)
            .because(format!("{to} did not answer within {} s", timeout.as_secs_f64()))
            .helped_by("check that the machine is up, and that no firewall drops the packets"),
        io::ErrorKind::ConnectionRefused => found
            .because(format!("connection refused: nothing listens at {to}"))
            .helped_by(
                "start the other end first: the same command with --listen ADDRESS:PORT instead of --connect",
            ),
        _ => found.because(format!("cannot reach {to}")),
    }
}

/// Accepts a connection from `from`, or from any host. Connections from other hosts are closed. The
/// listener is non-blocking, and so may be the connection.
///
/// # Errors
/// `TimedOut`: `end` passed; `None` never does.
pub(super) fn accept(
    listener: &TcpListener,
    from: Option<IpAddr>,
    end: Option<Instant>,
) -> Result<(TcpStream, SocketAddr)> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    const OP: &str = "wait for a connection";
    let is_nothing = |kind| matches!(kind, WouldBlock | ConnectionAborted | Interrupted);
    loop {
        // Checked in every turn: a flood of connections must not block this end.
        let left = end.map_or(STEP, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(Error::timed_out(OP).into());
        }
        readable([listener.as_fd()], left.min(STEP)).map_err(|errno| Error::from_errno(OP, errno))?;
        match listener.accept() {
            Ok((stream, peer)) if from.is_none_or(|from| from == peer.ip()) => return Ok((stream, peer)),
            Ok(_) => {}
            // No connection, or it was closed again.
            Err(error) if is_nothing(error.kind()) => {}
            Err(error) => return Err(Error::from_errno(OP, errno_of(error)).into()),
        }
    }
}

impl Wire {
    pub(super) fn connect(address: &str, timeout: Duration) -> Result<Self> {
        let end = Instant::now().checked_add(timeout);
        let mut failed = None;
        for to in resolve(address, timeout)? {
            let left = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            match TcpStream::connect_timeout(&to, left.max(Duration::from_millis(1))) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::Connected(stream));
                }
                // The first address is the preferred one.
                Err(error) => failed = failed.or(Some(not_connected(to, error, timeout))),
            }
        }
        Err(failed.context("the name has no address")?.into())
    }

    /// Duplicates the socket.
    pub(super) fn duplicate(&self) -> Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Parent(stream) | Self::Child(stream) => Box::new(stream.try_clone()?),
            Self::Connected(stream) | Self::Accepted(stream, ..) => Box::new(stream.try_clone()?),
        })
    }

    /// Returns this end of a cable. The end that started or found its peer makes the cable.
    pub(super) fn cable(&self, control: &mut Control, timeout: Duration) -> Result<OwnedFd> {
        let end = Instant::now().checked_add(timeout);
        Ok(match self {
            Self::Parent(_) => {
                let (ours, theirs) = UnixStream::pair().context("making a cable")?;
                control.send_cable(&theirs)?;
                ours.into()
            }
            Self::Child(_) => control.receive_cable()?,
            Self::Connected(stream) => {
                // The word distinguishes the cable from other connections to the port.
                let word = RandomState::new().build_hasher().finish();
                control.send(&word)?;
                let cable = TcpStream::connect_timeout(&stream.peer_addr()?, timeout)
                    .context("connecting the cable")?;
                cable.set_nodelay(true)?;
                Framed::new(cable.try_clone()?).send(CABLE, &word.to_le_bytes(), end)?;
                // The NIC's own deadlines count from here.
                cable.set_timeout(None)?;
                cable.into()
            }
            Self::Accepted(_, listener, from) => {
                let word: u64 = control.receive()?;
                accept_cable(listener, Some(*from), word, end)?.into()
            }
        })
    }
}

/// Accepts the connection that begins with the agreed word, and closes the others.
fn accept_cable(
    listener: &TcpListener,
    from: Option<IpAddr>,
    word: u64,
    end: Option<Instant>,
) -> Result<TcpStream> {
    loop {
        let (cable, _) = accept(listener, from, end)?;
        cable.set_nonblocking(false)?;
        cable.set_nodelay(true)?;
        let word_end = Instant::now().checked_add(WORD);
        let end_of_word = end.map_or(word_end, |end| word_end.map(|word_end| end.min(word_end)));
        let sent = Framed::new(cable.try_clone()?).receive(CABLE, 8, end_of_word);
        if sent.is_ok_and(|sent| sent == word.to_le_bytes()) {
            // The NIC's own deadlines count from here.
            cable.set_timeout(None)?;
            return Ok(cable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn listener() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    fn in_a_second() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(1))
    }

    #[test]
    fn cable_is_found_among_other_connections() {
        let listener = listener();
        let to = listener.local_addr().unwrap();
        let mut wrong = TcpStream::connect(to).unwrap();
        wrong.write_all(b"GET / HTTP/1.0\r\n").unwrap();
        drop(TcpStream::connect(to).unwrap());
        let right = TcpStream::connect(to).unwrap();
        let named = Framed::new(right.try_clone().unwrap()).send(CABLE, &7_u64.to_le_bytes(), None);
        named.unwrap();
        let end = Some(Instant::now() + Duration::from_secs(60));
        let cable = accept_cable(&listener, Some(to.ip()), 7, end).unwrap();
        assert_eq!(cable.peer_addr().unwrap(), right.local_addr().unwrap());
        assert_eq!(
            cable.read_timeout().unwrap(),
            None,
            "the NIC's own deadlines count from here"
        );
    }

    #[test]
    fn flooded_wait_ends() {
        let listener = listener();
        let to = listener.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    // Some send nothing, some the wrong word; the oldest are closed.
                    if let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_millis(50)) {
                        let _ = stream.write_all(&[0; 8][..held.len() % 9]);
                        held.push(stream);
                    }
                    if held.len() > 50 {
                        held.clear();
                    }
                }
            });
            let start = Instant::now();
            let ended = accept_cable(&listener, None, 7, in_a_second());
            let taken = start.elapsed();
            stop.store(true, Ordering::Relaxed);
            let error = ended.unwrap_err();
            let kind = error.downcast_ref::<Error>().map(Error::kind);
            assert_eq!(kind, Some(ErrorKind::TimedOut), "{error:#}");
            assert!(taken < Duration::from_secs(10), "{taken:?} for a deadline of 1 s");
        });
    }

    #[test]
    fn connections_from_other_hosts_are_closed() {
        let listener = listener();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let only = Some("127.0.0.2".parse().unwrap());
        assert!(accept(&listener, only, in_a_second()).is_err());
        other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
    }

    #[test]
    fn causes_of_a_failed_connect_are_apart() {
        let to: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let of = |kind: io::ErrorKind| not_connected(to, kind.into(), Duration::from_secs(3)).to_string();
        assert!(of(io::ErrorKind::TimedOut).contains("did not answer within 3 s"));
        let refused = io::Error::from_raw_os_error(gaudi::Errno::ECONNREFUSED as i32);
        let refused = not_connected(to, refused, Duration::from_secs(3)).to_string();
        assert!(
            refused.contains("connection refused: nothing listens at 127.0.0.1:1"),
            "{refused}"
        );
        let error = resolve("name.invalid:1", Duration::from_secs(60))
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot resolve name.invalid:1"), "{error}");
    }
}
