/* Registers device memory with a NIC by its dma-buf (ibv_reg_dmabuf_mr(3)), and packs the key that a
 * peer needs. Ends with 77 where no NIC can register a dma-buf.
 *
 *     cc verbs.c $(pkg-config --cflags --libs gaudi_copy) -libverbs -o verbs
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <gaudi_copy.h>
#include <infiniband/verbs.h>

#define LEN (1u << 20)
#define SKIP 77

static int failed(const char *what)
{
	fprintf(stderr, "error: %s: %s\n", what, gaudi_copy_error());
	return 1;
}

int main(void)
{
	struct gaudi_copy_alloc_options options;
	struct gaudi_copy_nic_region region;
	struct gaudi_copy_dmabuf part;
	struct ibv_context *context = NULL;
	struct ibv_device **devices;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	union ibv_gid gid;
	uint64_t domain, address;
	uint8_t key[GAUDI_COPY_REMOTE_KEY_BYTES];
	int count = 0;

	devices = ibv_get_device_list(&count);
	if (devices && count > 0)
		context = ibv_open_device(devices[0]);
	if (!context) {
		fprintf(stderr, "need: an RDMA device\n");
		return SKIP;
	}
	pd = ibv_alloc_pd(context);
	if (!pd) {
		perror("error: ibv_alloc_pd");
		return 1;
	}

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.type = GAUDI_COPY_DEVICE;
	options.export_mode = GAUDI_COPY_EXPORT_POOLED;
	if (gaudi_copy_open(NULL, &domain))
		return failed("open");
	if (gaudi_copy_alloc(domain, LEN, &options, &address))
		return failed("alloc");
	memset(&part, 0, sizeof(part));
	part.size = sizeof(part);
	if (gaudi_copy_dmabuf(domain, address, LEN, &part))
		return failed("dmabuf");

	mr = ibv_reg_dmabuf_mr(pd, part.offset, part.len, part.address, part.fd,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ);
	if (!mr) {
		fprintf(stderr, "need: a NIC that registers dma-bufs; %s: %s\n",
			ibv_get_device_name(devices[0]), strerror(errno));
		return SKIP;
	}
	/* The region holds the memory: the descriptor is not needed any more. */
	close(part.fd);

	memset(&region, 0, sizeof(region));
	memset(&gid, 0, sizeof(gid));
	ibv_query_gid(context, 1, 0, &gid);
	region.size = sizeof(region);
	region.rkey = mr->rkey;
	region.address = address;
	region.len = LEN;
	region.iova = part.address;
	memcpy(region.gid, gid.raw, sizeof(region.gid));
	region.access = GAUDI_COPY_REMOTE_WRITE | GAUDI_COPY_REMOTE_READ;
	if (gaudi_copy_pack_remote(domain, &region, key, sizeof(key)))
		return failed("pack");
	printf("registered %u bytes of device memory with %s: rkey %#x\n", LEN,
	       ibv_get_device_name(devices[0]), mr->rkey);

	/* In this order: the driver refuses to free memory that a region holds. */
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	if (gaudi_copy_free(domain, address))
		return failed("free");
	if (gaudi_copy_close(domain))
		return failed("close");
	return 0;
}
