/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Results of the libraries if libhl-thunk.so cannot be loaded. */

#include "check.h"
#include "scal.h"
#include "synapse_api.h"

/* Declared here, because hlthunk_err_inject.h includes hlthunk.h, which is not needed. */
int hlthunk_err_inject_thermal_event(int fd);

int main(void)
{
	scal_handle_t scal;
	int fd = 77;

	CHECK_EQUAL(synInitialize(), synFail);
	CHECK_EQUAL(synDestroy(), synUninitialized);
	CHECK_EQUAL(scal_init(0, "", &scal, NULL), SCAL_FAILURE);
	CHECK_EQUAL(hcclLookupDMABuff(0x1001000000000000, 4096, &fd), -ENODEV);
	CHECK_EQUAL(fd, -1);
	CHECK_EQUAL(hlthunk_err_inject_thermal_event(0), -ENOTSUP);
	return 0;
}
