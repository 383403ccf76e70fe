/* Writes from device memory to device memory by libfabric and back, with no copy through the host: both
 * ends are registered by their dma-bufs (FI_MR_DMABUF, libfabric 1.20). Two endpoints of one process
 * stand for two nodes. Ends with 77 where no provider can register a dma-buf.
 *
 *     cc libfabric.c $(pkg-config --cflags --libs gaudi_copy) -lfabric -o libfabric
 *     ./libfabric [DEVICE DEVICE [BYTES [ADDRESS]]]
 *
 * ADDRESS is an IP address of the NIC. Without it libfabric resolves a name, which needs the C library's
 * name service.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <gaudi_copy.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define SKIP 77

static void check(int answer, const char *what)
{
	if (answer == 0)
		return;
	fprintf(stderr, "error: %s: %s\n", what, fi_strerror(-answer));
	exit(1);
}

static void check_copy(int answer, const char *what)
{
	if (answer == 0)
		return;
	fprintf(stderr, "error: %s: %s\n", what, gaudi_copy_error());
	exit(1);
}

/* Bytes of a transfer. */
static size_t bytes = 1u << 20;

/* One end: a card, its memory, the memory's region and an endpoint. */
struct end {
	uint64_t domain, address;
	struct fid_mr *mr;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
};

static void allocate(const char *device, struct end *end)
{
	struct gaudi_copy_alloc_options options;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.type = GAUDI_COPY_DEVICE;
	options.export_mode = GAUDI_COPY_EXPORT_POOLED;
	check_copy(gaudi_copy_open(device, &end->domain), "open");
	check_copy(gaudi_copy_alloc(end->domain, bytes, &options, &end->address), "alloc");
}

static int register_memory(struct fid_domain *fabric, struct end *end, uint64_t key)
{
	struct gaudi_copy_dmabuf part;
	struct fi_mr_dmabuf dmabuf;
	struct fi_mr_attr attr;
	int answer;

	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	check_copy(gaudi_copy_dmabuf(end->domain, end->address, bytes, &part), "dmabuf");
	memset(&dmabuf, 0, sizeof(dmabuf));
	dmabuf.fd = part.fd;
	dmabuf.offset = part.offset;
	dmabuf.len = part.len;
	/* The provider's address of the region is base_addr + offset. */
	dmabuf.base_addr = (void *)(uintptr_t)(part.address - part.offset);
	memset(&attr, 0, sizeof(attr));
	attr.dmabuf = &dmabuf;
	attr.iov_count = 1;
	attr.access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	attr.requested_key = key;
	/* A provider asks no runtime of an accelerator about memory that comes as a dma-buf. */
	attr.iface = FI_HMEM_SYSTEM;
	answer = fi_mr_regattr(fabric, &attr, FI_MR_DMABUF, &end->mr);
	close(part.fd);
	return answer;
}

static void open_endpoint(struct fi_info *info, struct fid_domain *fabric, struct end *end)
{
	struct fi_cq_attr cq;
	struct fi_av_attr av;

	memset(&cq, 0, sizeof(cq));
	cq.format = FI_CQ_FORMAT_CONTEXT;
	memset(&av, 0, sizeof(av));
	check(fi_cq_open(fabric, &cq, &end->cq, NULL), "fi_cq_open");
	check(fi_av_open(fabric, &av, &end->av, NULL), "fi_av_open");
	check(fi_endpoint(fabric, info, &end->ep, NULL), "fi_endpoint");
	check(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	check(fi_ep_bind(end->ep, &end->av->fid, 0), "fi_ep_bind");
	check(fi_enable(end->ep), "fi_enable");
}

/* Waits for one completion of `end`; `peer` makes progress meanwhile. */
static void complete(struct end *end, struct end *peer)
{
	time_t limit = time(NULL) + 120;
	struct fi_cq_entry entry;

	for (;;) {
		ssize_t count = fi_cq_read(end->cq, &entry, 1);

		if (count == 1)
			return;
		if (count != -FI_EAGAIN)
			check((int)count, "the transfer");
		fi_cq_read(peer->cq, &entry, 1);
		if (time(NULL) > limit) {
			fprintf(stderr, "error: no completion within 120 s\n");
			exit(1);
		}
	}
}

static void close_end(struct end *end)
{
	fi_close(&end->ep->fid);
	fi_close(&end->av->fid);
	fi_close(&end->cq->fid);
	/* Before the free: the driver refuses to free memory that a region holds. */
	fi_close(&end->mr->fid);
	check_copy(gaudi_copy_free(end->domain, end->address), "free");
	check_copy(gaudi_copy_close(end->domain), "close");
}

/* Writes the memory of one end to the other's, and compares it there. The NIC moves it: the library
 * copies nothing meanwhile. */
static void transfer(struct fi_info *info, struct end *source, struct end *target, unsigned char seed)
{
	int virtual = !!(info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
	unsigned char *sent = malloc(bytes), *back = calloc(1, bytes), name[256];
	size_t name_len = sizeof(name), piece = info->ep_attr->max_msg_size;
	struct gaudi_copy_counters before, after;
	struct fi_context2 context;
	fi_addr_t peer;

	memset(&before, 0, sizeof(before));
	before.size = sizeof(before);
	after = before;
	check(fi_getname(&target->ep->fid, name, &name_len), "fi_getname");
	if (fi_av_insert(source->av, name, 1, &peer, 0, NULL) != 1) {
		fprintf(stderr, "error: fi_av_insert\n");
		exit(1);
	}
	for (size_t at = 0; at < bytes; at++)
		sent[at] = (unsigned char)(at * 31 + (at >> 12) + seed);
	check_copy(gaudi_copy_copy(source->domain, source->address, (uint64_t)(uintptr_t)sent, bytes), "copy");

	check_copy(gaudi_copy_count(&before), "count");
	for (size_t at = 0; at < bytes; at += piece) {
		size_t count = bytes - at < piece ? bytes - at : piece;
		uint64_t remote = (virtual ? target->address : 0) + at;
		ssize_t posted;

		while ((posted = fi_write(source->ep, (void *)(uintptr_t)(source->address + at), count,
					  fi_mr_desc(source->mr), peer, remote, fi_mr_key(target->mr),
					  &context)) == -FI_EAGAIN) {
			struct fi_cq_entry entry;

			fi_cq_read(source->cq, &entry, 1);
			fi_cq_read(target->cq, &entry, 1);
		}
		check((int)posted, "fi_write");
		complete(source, target);
	}
	check_copy(gaudi_copy_count(&after), "count");

	check_copy(gaudi_copy_copy(target->domain, (uint64_t)(uintptr_t)back, target->address, bytes), "copy");
	if (memcmp(sent, back, bytes)) {
		fprintf(stderr, "error: the target has other bytes\n");
		exit(1);
	}
	printf("wrote %zu bytes from device memory to device memory by %s: copies=%llu exports=%llu\n", bytes,
	       info->fabric_attr->prov_name, (unsigned long long)(after.copies - before.copies),
	       (unsigned long long)after.exports);
	free(sent);
	free(back);
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	struct fid_fabric *fabric;
	struct fid_domain *access;
	const char *address = argc > 4 ? argv[4] : NULL;
	struct end near, far;
	int answer;

	memset(&near, 0, sizeof(near));
	memset(&far, 0, sizeof(far));
	if (argc > 3)
		bytes = strtoul(argv[3], NULL, 0);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
	answer = fi_getinfo(FI_VERSION(1, 20), address, NULL, address ? FI_SOURCE : 0, hints, &info);
	if (answer) {
		fprintf(stderr, "need: an RDMA device that libfabric's verbs provider can use; fi_getinfo: %s\n",
			fi_strerror(-answer));
		return SKIP;
	}
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	check(fi_domain(fabric, info, &access, NULL), "fi_domain");

	allocate(argc > 2 ? argv[1] : NULL, &near);
	allocate(argc > 2 ? argv[2] : NULL, &far);
	answer = register_memory(access, &near, 1);
	if (!answer)
		answer = register_memory(access, &far, 2);
	if (answer) {
		fprintf(stderr, "need: a NIC that registers dma-bufs; fi_mr_regattr: %s\n", fi_strerror(-answer));
		return SKIP;
	}
	open_endpoint(info, access, &near);
	open_endpoint(info, access, &far);
	transfer(info, &near, &far, 7);
	transfer(info, &far, &near, 90);

	close_end(&near);
	close_end(&far);
	fi_close(&access->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
