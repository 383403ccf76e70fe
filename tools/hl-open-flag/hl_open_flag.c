// SPDX-License-Identifier: GPL-2.0
/*
 * Sets FOP_UNSIGNED_OFFSET in the file operations of a loaded habanalabs driver, so that its compute nodes can be opened.
 *
 * Since Linux 6.12 drm_file.c:drm_open_helper rejects an open with EINVAL if the file operations lack this flag. The operations of habanalabs
 * (habanalabs_drv.c:hl_fops) lack it up to 7.3. They are constant, so the flag is written through a second, writable mapping of their page.
 * They are found through structures of the kernel's headers alone: PCI function, accel device, struct drm_minor, drm_device, drm_driver.
 *
 * The flag is set when this module is loaded, when a card is bound later, and after habanalabs was loaded again; rmmod clears it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include <drm/drm_accel.h>
#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>

#define DRIVER "habanalabs"
#define VENDOR_HABANALABS 0x1da3

/* Protects `patched`. Taken inside the lock of a device, never around it. */
static DEFINE_MUTEX(lock);

/* The operations whose flag is set, and the module that they are part of; NULL if there are none. */
static const struct file_operations *patched;
static struct module *patched_owner;

static int write_flags(const struct file_operations *fops, fop_flags_t flags)
{
	unsigned long offset = offset_in_page(&fops->fop_flags);
	struct page *page = vmalloc_to_page(&fops->fop_flags);
	void *alias;

	if (!page)
		return -EFAULT;
	alias = vmap(&page, 1, VM_MAP, PAGE_KERNEL);
	if (!alias)
		return -ENOMEM;
	/* Aligned, so inside one page, and an open sees the old value or the new one. */
	WRITE_ONCE(*(fop_flags_t *)(alias + offset), flags);
	vunmap(alias);
	return READ_ONCE(fops->fop_flags) == flags ? 0 : -EIO;
}

/* The first difference from habanalabs_drv.c:hl_fops of 6.12 to 7.3, or NULL. The caller holds the device lock of `pdev`. */
static const char *difference(struct pci_dev *pdev, struct device *node, struct drm_minor *minor)
{
	struct module *owner = pdev->dev.driver->owner;
	const struct file_operations *fops;
	struct drm_device *drm;

	if (!owner)
		return "the driver is built into the kernel";
	if (strcmp(module_name(owner), DRIVER))
		return "the driver belongs to another module";
	if (!minor || minor->kdev != node || minor->type != DRM_MINOR_ACCEL || minor->index != MINOR(node->devt))
		return "the accel device has no matching struct drm_minor";
	drm = minor->dev;
	if (!drm || drm->dev != &pdev->dev || drm->accel != minor)
		return "the struct drm_device is that of another device";
	if (!drm->driver || !within_module_core((unsigned long)drm->driver, owner) || !drm->driver->name ||
	    strcmp(drm->driver->name, DRIVER) || !drm_core_check_feature(drm, DRIVER_COMPUTE_ACCEL))
		return "the struct drm_driver is not the driver's";
	fops = drm->driver->fops;
	if (!fops || !within_module_core((unsigned long)fops, owner) || fops->owner != owner)
		return "the file operations are not the driver's";
	if (fops->open != accel_open || fops->release != drm_release)
		return "open or release is not that of the accel subsystem";
	if (!fops->mmap || !within_module_core((unsigned long)fops->mmap, owner))
		return "mmap is not the driver's";
	if (fops->fop_flags & ~FOP_UNSIGNED_OFFSET)
		return "the file operations have other flags";
	return NULL;
}

/* For each child of a PCI function; `data` is the function. */
static int visit(struct device *node, void *data)
{
	struct drm_minor *minor;
	struct pci_dev *pdev = data;
	const struct file_operations *fops;
	const char *why;
	int err;

	/* The driver's control nodes have the same class, and a major number of their own. */
	if (!node->class || strcmp(node->class->name, "accel") || MAJOR(node->devt) != ACCEL_MAJOR)
		return 0;
	minor = dev_get_drvdata(node);
	why = difference(pdev, node, minor);
	if (why) {
		pci_err(pdev, "%s: %s: not changed\n", KBUILD_MODNAME, why);
		return -EINVAL;
	}
	fops = minor->dev->driver->fops;
	if (READ_ONCE(fops->fop_flags) & FOP_UNSIGNED_OFFSET) {
		if (fops != patched)
			pci_info(pdev, "%s: this driver sets the flag itself: nothing to do\n", KBUILD_MODNAME);
		return 0;
	}
	err = write_flags(fops, fops->fop_flags | FOP_UNSIGNED_OFFSET);
	if (err) {
		pci_err(pdev, "%s: cannot set the flag: %d\n", KBUILD_MODNAME, err);
		return err;
	}
	patched = fops;
	patched_owner = fops->owner;
	pci_info(pdev, "%s: set FOP_UNSIGNED_OFFSET: compute nodes of %s can be opened\n", KBUILD_MODNAME, DRIVER);
	return 0;
}

/* The caller holds the device lock of `pdev`, so the driver stays bound. */
static int visit_card(struct pci_dev *pdev)
{
	int err;

	if (pdev->vendor != VENDOR_HABANALABS || !pdev->dev.driver || strcmp(pdev->dev.driver->name, DRIVER))
		return 0;
	mutex_lock(&lock);
	err = device_for_each_child(&pdev->dev, pdev, visit);
	mutex_unlock(&lock);
	return err;
}

static int on_bus(struct notifier_block *nb, unsigned long event, void *data)
{
	if (event == BUS_NOTIFY_BOUND_DRIVER)
		visit_card(to_pci_dev(data)); /* the log has the reason of a refusal */
	return NOTIFY_DONE;
}

/* The module's memory is freed after this event: from here on there is nothing to clear. */
static int on_module(struct notifier_block *nb, unsigned long event, void *data)
{
	if (event != MODULE_STATE_GOING)
		return NOTIFY_DONE;
	mutex_lock(&lock);
	if (patched_owner == data)
		patched = NULL;
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}

static struct notifier_block bus_notifier = { .notifier_call = on_bus };
static struct notifier_block module_notifier = { .notifier_call = on_module };

static void stop(void)
{
	bus_unregister_notifier(&pci_bus_type, &bus_notifier);
	mutex_lock(&lock);
	if (patched && write_flags(patched, patched->fop_flags & ~FOP_UNSIGNED_OFFSET))
		pr_err("cannot clear FOP_UNSIGNED_OFFSET: it stays until %s is unloaded\n", DRIVER);
	patched = NULL;
	mutex_unlock(&lock);
	unregister_module_notifier(&module_notifier);
}

static int __init start(void)
{
	struct pci_dev *pdev = NULL;
	int err;

	err = register_module_notifier(&module_notifier);
	if (err)
		return err;
	err = bus_register_notifier(&pci_bus_type, &bus_notifier);
	if (err) {
		unregister_module_notifier(&module_notifier);
		return err;
	}
	while ((pdev = pci_get_device(VENDOR_HABANALABS, PCI_ANY_ID, pdev))) {
		device_lock(&pdev->dev);
		err = visit_card(pdev);
		device_unlock(&pdev->dev);
		if (err) {
			pci_dev_put(pdev);
			stop();
			return err;
		}
	}
	return 0;
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("Sets the file operations flag without which habanalabs nodes cannot be opened");
MODULE_LICENSE("GPL");
