/* A program for the driver's ioctls, as an unmodified one is: it includes no header of the driver,
 * and knows the numbers of Linux 6.7 and later (drm/habanalabs_accel.h). It prints one line for each
 * step, and exits with 1 at the first that fails.
 *
 * usage: program CTL, the control word of a LIN_DMA packet. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

static void *in_thread(void *fd)
{
    uint32_t status;
    return status_of(*(int *)fd, &status) == 0 && status == 0 ? fd : NULL;
}

int main(int count, char **words)
{
    unsigned ctl = strtoul(count > 1 ? words[1] : "0", NULL, 0);
    if (count > 2) { /* after exec: the descriptor is inherited */
        uint32_t status;
        return status_of(atoi(words[2]), &status) || status;
    }
    DIR *folder = opendir("/dev/accel");
    int nodes = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        nodes += !strcmp(entry->d_name, "accel0") || !strcmp(entry->d_name, "accel_controlD0");
    check(folder && nodes == 2, "list /dev/accel");
    closedir(folder);
    char text[64] = "";
    int attribute = open("/sys/class/accel/accel0/device/pci_addr", O_RDONLY);
    check(attribute >= 0 && read(attribute, text, sizeof text) > 0 && !strncmp(text, "0000:", 5), "read pci_addr");
    close(attribute);
    struct stat seen;
    check(!stat("/dev/accel/accel0", &seen) && S_ISCHR(seen.st_mode) && major(seen.st_rdev) == 261, "stat node");
    check(access("/dev/accel/accel7", F_OK) && errno == ENOENT, "missing node");
    int control = open("/dev/accel/accel_controlD0", O_RDWR | O_CLOEXEC);
    check(control >= 0, "open control");
    uint32_t status;
    check(!status_of(control, &status) && status == 0, "control status");
    check(memory(control, 0, 0, 1, 0, 0) && errno == ENOTTY, "control refuses memory");
    int fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
    check(fd >= 0, "open");
    check(!fstat(fd, &seen) && S_ISCHR(seen.st_mode) && major(seen.st_rdev) == 261, "fstat");
    check(open("/dev/accel/accel0", O_RDWR) < 0 && errno == EBUSY, "second open");
    check(!status_of(fd, &status) && status == 0, "status");
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    check(poll(&polled, 1, 0) >= 0, "poll");

    check(!memory(fd, 0, 0, 4096, 0, 0), "allocate");
    uint64_t handle = value;
    check(!memory(fd, 2, 0, 0, handle, 0), "map");
    uint64_t device = value;
    check(memory(fd, 1, 0, handle, 0, 0) && errno == EINVAL, "free while mapped");
    char *host = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(host, 0x5a, 4096);
    /* Not at the start of a page. */
    check(!memory(fd, 2, 4, (uint64_t)host + 16, 0, 8192), "map host memory");
    uint64_t va = value;
    check(memory(fd, 2, 4, 64, 0, 4096) && errno == EFAULT, "map missing host memory");
    union cb cb = {.in = {.op = 0, .size = 4096, .flags = 1}};
    check(!call(fd, 1, &cb, sizeof cb), "create a command buffer");
    uint64_t buffer = cb.out.handle;
    struct lin_dma *packets = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)buffer);
    check(packets != MAP_FAILED, "mmap the command buffer");
    memset(&cb, 0, sizeof cb);
    cb.in.handle = buffer;
    cb.in.op = 2;
    cb.in.flags = 2;
    check(!call(fd, 1, &cb, sizeof cb) && cb.out.handle, "address of the command buffer");
    packets[0] = (struct lin_dma){4000, ctl, va, device};
    packets[1] = (struct lin_dma){4000, ctl, device, va + 4096};
    struct chunk chunk = {.cb = cb.out.handle, .queue = 4, .size = 2 * sizeof *packets, .flags = 1};
    union cs cs = {.in = {.execute = (uint64_t)&chunk, .n_execute = 1}};
    check(!call(fd, 2, &cs, sizeof cs), "submit");
    union wait wait_for = {.in = {.seq = cs.out.seq, .timeout_us = 10000000}};
    check(!call(fd, 3, &wait_for, sizeof wait_for) && wait_for.out.status == 0, "wait");
    check(!memcmp(host + 16, host + 4096 + 16, 4000 - 16) && host[4096 + 16] == 0x5a, "bytes from the device");

    int other = dup(fd);
    check(!status_of(other, &status) && status == 0, "ioctl on a duplicate");
    close(other);
    pthread_t thread;
    void *answer = NULL;
    pthread_create(&thread, NULL, in_thread, &fd);
    pthread_join(thread, &answer);
    check(answer != NULL, "ioctl in a thread");
    pid_t child = fork();
    if (!child)
        _exit(status_of(fd, &status) || status);
    int ended = -1;
    check(waitpid(child, &ended, 0) == child && ended == 0, "ioctl in a fork child");
    child = fork();
    if (!child) {
        char number[16];
        snprintf(number, sizeof number, "%d", fcntl(fd, F_DUPFD, 50));
        execl("/proc/self/exe", words[0], "0", number, (char *)NULL);
        _exit(1);
    }
    check(waitpid(child, &ended, 0) == child && ended == 0, "ioctl after exec");
    union mem export = {.in = {.arg = {device, 4096, 0}, .op = 5, .flags = O_RDWR | O_CLOEXEC}};
    check(!call(fd, 4, &export, sizeof export), "export");
    int dmabuf = (int)export.out.value;
    check(fcntl(dmabuf, F_GETFD) == FD_CLOEXEC && !close(dmabuf), "descriptor of the export");
    check(!memory(fd, 3, 0, va, 0, 0), "unmap host memory");
    check(host[0] == 0x5a, "host memory stays");
    munmap(packets, 4096);
    close(fd);
    do /* the driver resets a card when its last user has closed it */
        fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
    while (fd < 0 && (errno == EBUSY || errno == EAGAIN) && !usleep(100000));
    check(fd >= 0, "open again");
    check(!status_of(fd, &status) && status == 0, "status again");
    printf("all\n");
    return 0;
}
