// SPDX-License-Identifier: GPL-2.0
/*
 * dma-buf memory regions for soft-RoCE.
 * Part of the lab of gaudi-hal, not of Linux; see README.md.
 *
 * A real NIC takes the dma addresses of a dma-buf and reads and writes there.
 * This "NIC" is the processor, so it does the same from the processor's side:
 * dma address -> physical address -> struct page where the address is RAM, an
 * uncached mapping where it is a BAR. Pages of the scatter list are never
 * looked at: an importer must not, and a BAR has none.
 *
 * A region is a table of segments, physically contiguous pieces in the order
 * of its bytes. The data path finds its segment by bisection and copies under
 * a read lock; the exporter's revocation takes the write lock once, to say
 * that the region is dead, and unmaps when no reader can be left.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/highmem.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/ioport.h>
#include <linux/memremap.h>
#include <linux/overflow.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/version.h>

#include "rxe.h"
#include "rxe_loc.h"
#include "rxe_dmabuf.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
/* /sys/module/rdma_rxe/version: a reader of the machine can tell it from Linux's own. */
MODULE_VERSION("gaudi-hal-lab-dmabuf");

struct rxe_dmabuf_segment {
	u64			at;	/* of its first byte in the region */
	u64			len;
	phys_addr_t		phys;
	void __iomem		*io;	/* none where there are pages */
};

struct rxe_dmabuf {
	struct device			*dev;
	struct dma_buf_attachment	*attach;
	struct sg_table			*sgt;
	struct rxe_dmabuf_segment	*segments;
	unsigned int			count;
	bool				pinned;
	rwlock_t			lock;	/* guards dead against the data path */
	bool				dead;
};

/* Attaches for net devices that are no PCI functions: veth, dummy, lo. */
static struct platform_device *rxe_dmabuf_platform;

/* Where it fails, regions over those net devices are refused; the rest of the driver is as it was. */
void rxe_dmabuf_module_init(void)
{
	struct platform_device_info info = {
		.name = "rxe_dmabuf",
		.id = PLATFORM_DEVID_NONE,
		.dma_mask = DMA_BIT_MASK(64),
	};

	rxe_dmabuf_platform = platform_device_register_full(&info);
	if (IS_ERR(rxe_dmabuf_platform))
		rxe_dmabuf_platform = NULL;
	pr_info("the lab's patched build, with dma-buf memory regions\n");
}

void rxe_dmabuf_module_exit(void)
{
	platform_device_unregister(rxe_dmabuf_platform);
}

/*
 * The device that a dma-buf is attached to. Exporters of PCI memory measure
 * its distance, so it is the PCI function under the net device where there is
 * one.
 */
static struct device *rxe_dmabuf_device(struct rxe_dev *rxe)
{
	struct net_device *ndev = ib_device_get_netdev(&rxe->ib_dev, 1);
	struct device *dev = ndev ? ndev->dev.parent : NULL;

	while (dev && !dev_is_pci(dev))
		dev = dev->parent;
	if (!dev && rxe_dmabuf_platform)
		dev = &rxe_dmabuf_platform->dev;
	get_device(dev);
	dev_put(ndev);
	return dev;
}

/*
 * Behind a translating IOMMU a dma address is no physical one, unless the
 * exporter gave a PCI bus address for traffic that stays below a switch; on
 * x86 those are physical.
 */
static phys_addr_t rxe_dmabuf_phys(struct iommu_domain *domain, dma_addr_t addr)
{
	phys_addr_t phys = domain ? iommu_iova_to_phys(domain, addr) : addr;

	if (!phys && !page_is_ram(PHYS_PFN(addr)))
		phys = addr;
	return phys;
}

/* pfn_valid() alone is true of holes beside RAM, which nothing maps. */
static bool rxe_dmabuf_has_page(phys_addr_t phys)
{
	unsigned long pfn = PHYS_PFN(phys);

	if (!pfn_valid(pfn))
		return false;
	return page_is_ram(pfn) || is_zone_device_page(pfn_to_page(pfn));
}

/*
 * Walks [offset, offset + length) of the mapped dma-buf in physically
 * contiguous segments. Returns their number, and stores them where there is a
 * table for them.
 */
static long rxe_dmabuf_walk(struct rxe_dmabuf *db, u64 offset, u64 length,
			    struct rxe_dmabuf_segment *table)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(db->dev);
	struct rxe_dmabuf_segment last = {};
	u64 begin = 0, done = 0;
	struct scatterlist *sg;
	bool last_page = false;
	long count = 0;
	int i;

	for_each_sgtable_dma_sg(db->sgt, sg, i) {
		u64 len = sg_dma_len(sg);
		u64 from = max(offset, begin);
		u64 to = min(offset + length, begin + len);

		while (from < to) {
			dma_addr_t addr = sg_dma_address(sg) + (from - begin);
			phys_addr_t phys = rxe_dmabuf_phys(domain, addr);
			u64 piece = min(to - from, PAGE_SIZE - offset_in_page(addr));
			bool page;

			if (!phys)
				return -EFAULT;
			page = rxe_dmabuf_has_page(phys);
			if (!count || last.phys + last.len != phys || last_page != page) {
				if (count && table)
					table[count - 1] = last;
				last = (struct rxe_dmabuf_segment){ .at = done, .phys = phys };
				last_page = page;
				count++;
			}
			last.len += piece;
			done += piece;
			from += piece;
		}
		begin += len;
	}
	if (done != length)
		return -EINVAL;
	if (table)
		table[count - 1] = last;
	return count;
}

static int rxe_dmabuf_fill(struct rxe_dmabuf *db, u64 offset, u64 length)
{
	long count = rxe_dmabuf_walk(db, offset, length, NULL);
	unsigned int i;

	if (count < 0)
		return count;
	db->segments = kvcalloc(count, sizeof(*db->segments), GFP_KERNEL);
	if (!db->segments)
		return -ENOMEM;
	count = rxe_dmabuf_walk(db, offset, length, db->segments);
	if (count < 0)
		return count;
	db->count = count;

	for (i = 0; i < db->count; i++) {
		struct rxe_dmabuf_segment *segment = &db->segments[i];

		if (rxe_dmabuf_has_page(segment->phys))
			continue;
		/* As vfio maps a BAR. Where it is mapped write-combining, so must we. */
		segment->io = ioremap(segment->phys, segment->len);
		if (!segment->io)
			segment->io = ioremap_wc(segment->phys, segment->len);
		if (!segment->io)
			return -ENOMEM;
	}
	return 0;
}

/*
 * The exporter takes its memory back, or the region ends. The key stays taken
 * until the region is deregistered: a late packet gets its error and never
 * someone else's memory. Under the reservation lock; a second call does
 * nothing.
 */
static void rxe_dmabuf_revoke(struct dma_buf_attachment *attach)
{
	struct rxe_dmabuf *db = attach->importer_priv;
	unsigned int i;

	dma_resv_assert_held(attach->dmabuf->resv);

	write_lock_bh(&db->lock);
	db->dead = true;
	write_unlock_bh(&db->lock);

	for (i = 0; i < db->count; i++) {
		if (db->segments[i].io)
			iounmap(db->segments[i].io);
		db->segments[i].io = NULL;
	}
	db->count = 0;
	if (db->sgt)
		dma_buf_unmap_attachment(attach, db->sgt, DMA_BIDIRECTIONAL);
	db->sgt = NULL;
	if (db->pinned)
		dma_buf_unpin(attach);
	db->pinned = false;
}

static const struct dma_buf_attach_ops rxe_dmabuf_attach_ops = {
	.allow_peer2peer = true,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	.invalidate_mappings = rxe_dmabuf_revoke,
#else
	.move_notify = rxe_dmabuf_revoke,
#endif
};

/* Pins, maps and fills. What is half done stays for rxe_dmabuf_release(). */
static int rxe_dmabuf_map(struct rxe_dmabuf *db, u64 offset, u64 length)
{
	struct dma_resv *resv = db->attach->dmabuf->resv;
	long left;
	int err;

	dma_resv_lock(resv, NULL);
	err = dma_buf_pin(db->attach);
	if (err)
		goto unlock;
	db->pinned = true;
	/*
	 * A move between the attachment and this lock, or by the pin itself,
	 * found nothing to take back: no key exists yet. From here on the
	 * buffer stays, or is revoked under the lock that we hold.
	 */
	write_lock_bh(&db->lock);
	db->dead = false;
	write_unlock_bh(&db->lock);
	db->sgt = dma_buf_map_attachment(db->attach, DMA_BIDIRECTIONAL);
	if (IS_ERR(db->sgt)) {
		err = PTR_ERR(db->sgt);
		db->sgt = NULL;
		goto unlock;
	}
	err = rxe_dmabuf_fill(db, offset, length);
	if (err)
		goto unlock;
	/* The addresses are right; the bytes may still be on their way. */
	left = dma_resv_wait_timeout(resv, DMA_RESV_USAGE_KERNEL, false,
				     MAX_SCHEDULE_TIMEOUT);
	if (left <= 0)
		err = left ? left : -ETIMEDOUT;
unlock:
	dma_resv_unlock(resv);
	return err;
}

static int rxe_dmabuf_init(struct rxe_mr *mr, struct rxe_dev *rxe, u64 offset,
			   u64 length, u64 iova, int fd)
{
	struct rxe_dmabuf *db;
	struct dma_buf *dmabuf;
	u64 end;
	int err;

	if (!length || check_add_overflow(offset, length, &end) ||
	    check_add_overflow(iova, length - 1, &end))
		return -EINVAL;
	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (offset > dmabuf->size || length > dmabuf->size - offset) {
		err = -EINVAL;
		goto put;
	}
	db = kzalloc(sizeof(*db), GFP_KERNEL);
	if (!db) {
		err = -ENOMEM;
		goto put;
	}
	rwlock_init(&db->lock);
	db->dev = rxe_dmabuf_device(rxe);
	if (db->dev)
		db->attach = dma_buf_dynamic_attach(dmabuf, db->dev,
						    &rxe_dmabuf_attach_ops, db);
	else
		db->attach = ERR_PTR(-ENODEV);
	if (IS_ERR(db->attach)) {
		err = PTR_ERR(db->attach);
		put_device(db->dev);
		kfree(db);
		goto put;
	}
	mr->dmabuf = db; /* from here on rxe_dmabuf_release() gives all back */
	err = rxe_dmabuf_map(db, offset, length);
	if (err)
		return err;
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	mr->state = RXE_MR_STATE_VALID;
	return 0;
put:
	dma_buf_put(dmabuf);
	return err;
}

static struct ib_mr *rxe_dmabuf_reg(struct ib_pd *ibpd, u64 offset, u64 length,
				    u64 iova, int fd, int access)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_pd *pd = to_rpd(ibpd);
	struct rxe_mr *mr;
	int err;

	if (access & ~RXE_ACCESS_SUPPORTED_MR)
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_get(pd); /* rxe_mr_cleanup() puts it */
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;
	rxe_mr_init(access, mr);
	mr->ibmr.type = IB_MR_TYPE_USER;

	err = rxe_dmabuf_init(mr, rxe, offset, length, iova, fd);
	if (err) {
		rxe_cleanup(mr);
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_finalize(mr);
	return &mr->ibmr;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				     u64 iova, int fd, int access,
				     struct ib_dmah *dmah,
				     struct uverbs_attr_bundle *attrs)
{
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	return rxe_dmabuf_reg(ibpd, offset, length, iova, fd, access);
}
#else
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				     u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs)
{
	return rxe_dmabuf_reg(ibpd, offset, length, iova, fd, access);
}
#endif

void rxe_dmabuf_release(struct rxe_mr *mr)
{
	struct rxe_dmabuf *db = mr->dmabuf;
	struct dma_buf *dmabuf;

	if (!db)
		return;
	mr->dmabuf = NULL;
	dmabuf = db->attach->dmabuf;
	dma_resv_lock(dmabuf->resv, NULL);
	rxe_dmabuf_revoke(db->attach);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_detach(dmabuf, db->attach);
	dma_buf_put(dmabuf);
	put_device(db->dev);
	kvfree(db->segments);
	kfree(db);
}

/* The segment that holds a byte of the region. Never called of a dead region. */
static struct rxe_dmabuf_segment *rxe_dmabuf_find(struct rxe_dmabuf *db, u64 at)
{
	unsigned int low = 0, high = db->count;

	while (high - low > 1) {
		unsigned int middle = low + (high - low) / 2;

		if (db->segments[middle].at <= at)
			low = middle;
		else
			high = middle;
	}
	return &db->segments[low];
}

/* The table is written before the region has a key, and read under the lock after that. */
static bool rxe_dmabuf_begin(struct rxe_dmabuf *db)
{
	read_lock_bh(&db->lock);
	if (!db->dead)
		return true;
	read_unlock_bh(&db->lock);
	return false;
}

static void rxe_dmabuf_end(struct rxe_dmabuf *db)
{
	read_unlock_bh(&db->lock);
}

int rxe_dmabuf_copy(struct rxe_mr *mr, u64 iova, void *addr,
		    unsigned int length, bool to_region)
{
	struct rxe_dmabuf *db = mr->dmabuf;
	struct rxe_dmabuf_segment *segment;
	u64 at = iova - mr->ibmr.iova;
	int err = mr_check_range(mr, iova, length);

	if (err)
		return err;
	if (!rxe_dmabuf_begin(db))
		return -EFAULT;
	segment = rxe_dmabuf_find(db, at);
	while (length) {
		u64 skip = at - segment->at;
		unsigned int bytes = min_t(u64, length, segment->len - skip);

		if (segment->io) {
			if (to_region)
				memcpy_toio(segment->io + skip, addr, bytes);
			else
				memcpy_fromio(addr, segment->io + skip, bytes);
		} else {
			phys_addr_t phys = segment->phys + skip;
			u8 *va;

			bytes = min_t(unsigned int, bytes, PAGE_SIZE - offset_in_page(phys));
			va = kmap_local_page(pfn_to_page(PHYS_PFN(phys)));
			if (to_region)
				memcpy(va + offset_in_page(phys), addr, bytes);
			else
				memcpy(addr, va + offset_in_page(phys), bytes);
			kunmap_local(va);
		}
		addr += bytes;
		at += bytes;
		length -= bytes;
		if (length && at == segment->at + segment->len)
			segment++;
	}
	/* Where the BAR is write-combining, the answer must not overtake the bytes. */
	if (to_region)
		wmb();
	rxe_dmabuf_end(db);
	return 0;
}

/*
 * Runs an operation on eight bytes in their place. They lie in one segment:
 * they are aligned, and segments begin and end with pages, save at the ends
 * of the region.
 */
static void rxe_dmabuf_with_word(struct rxe_dmabuf_segment *segment, u64 skip,
				 void (*op)(u64 *word, void *arg), void *arg)
{
	phys_addr_t phys = segment->phys + skip;
	u8 *va;

	if (segment->io) {
		op((__force u64 *)(segment->io + skip), arg);
		return;
	}
	va = kmap_local_page(pfn_to_page(PHYS_PFN(phys)));
	op((u64 *)(va + offset_in_page(phys)), arg);
	kunmap_local(va);
}

struct rxe_dmabuf_atomic {
	spinlock_t *lock;
	bool swap;
	u64 compare;
	u64 swap_add;
	u64 *old;
};

static void rxe_dmabuf_do_atomic(u64 *word, void *arg)
{
	struct rxe_dmabuf_atomic *atomic = arg;
	u64 value;

	spin_lock_bh(atomic->lock);
	value = READ_ONCE(*word);
	*atomic->old = value;
	if (!atomic->swap)
		WRITE_ONCE(*word, value + atomic->swap_add);
	else if (value == atomic->compare)
		WRITE_ONCE(*word, atomic->swap_add);
	spin_unlock_bh(atomic->lock);
}

int rxe_dmabuf_atomic_op(struct rxe_mr *mr, u64 iova, int opcode, u64 compare,
			 u64 swap_add, u64 *old, spinlock_t *lock)
{
	struct rxe_dmabuf *db = mr->dmabuf;
	struct rxe_dmabuf_atomic atomic = {
		.lock = lock,
		.swap = opcode == IB_OPCODE_RC_COMPARE_SWAP,
		.compare = compare,
		.swap_add = swap_add,
		.old = old,
	};
	struct rxe_dmabuf_segment *segment;
	u64 at = iova - mr->ibmr.iova;

	if (!rxe_dmabuf_begin(db))
		return -EFAULT;
	segment = rxe_dmabuf_find(db, at);
	rxe_dmabuf_with_word(segment, at - segment->at, rxe_dmabuf_do_atomic, &atomic);
	wmb();
	rxe_dmabuf_end(db);
	return 0;
}

static void rxe_dmabuf_do_write(u64 *word, void *arg)
{
	smp_store_release(word, *(u64 *)arg);
}

int rxe_dmabuf_atomic_write(struct rxe_mr *mr, u64 iova, u64 value)
{
	struct rxe_dmabuf *db = mr->dmabuf;
	struct rxe_dmabuf_segment *segment;
	u64 at = iova - mr->ibmr.iova;

	if (!rxe_dmabuf_begin(db))
		return -EFAULT;
	segment = rxe_dmabuf_find(db, at);
	rxe_dmabuf_with_word(segment, at - segment->at, rxe_dmabuf_do_write, &value);
	wmb();
	rxe_dmabuf_end(db);
	return 0;
}
