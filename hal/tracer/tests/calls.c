/* Calls ioctl(2) in every possible way, for the tracer's tests.
 *
 * The request has the type and the argument of the driver's INFO ioctl; the device is /dev/null,
 * where it fails with ENOTTY. The argument contains the call's number, so a test can find missing
 * calls.
 *
 * calls all          50 ioctls: see below; prints "done", exits with 7
 * calls loop N       N ioctls
 * calls libc N       N ioctls through libc
 * calls mixed N      N getppid(2)
 * calls child        what `all` executes: 5 ioctls
 * calls signal N     one ioctl, then is killed by signal N
 * calls sleep        ioctls until it is killed; first prints its pid
 * calls fds          prints its open descriptors
 * calls files        open, dup, dup2, mmap, munmap, close of /dev/zero
 * calls compat       one ioctl through the 32-bit ABI (x86-64)
 * calls pointers     one submission with two chunks, and one INFO query with a buffer
 * calls threads N    500 ioctls of libc in each of N threads
 * calls sequence N   one ioctl of libc in each of N threads, one after the other
 * calls storm N      N ioctls of libc while a timer's handler calls ioctl; prints its number
 * calls vfork        3 ioctls of libc, the second in a child of vfork; prints the two ids
 * calls vfork-close  2 ioctls of libc; between them, a child of vfork closes the descriptor
 * calls vfork-first  as vfork-close, the second in a thread that calls vfork first; prints its id
 * calls dlopen FILE  one ioctl by the function `late` of a library
 * calls busy N       as sequence, while another thread makes ioctls without pause
 * calls scribble     overwrites the rings of the session after an ioctl; prints "done"
 * calls positions    overwrites the writers' positions instead
 * calls future       writes a record of a time that does not come
 * calls coroutine    3 ioctls of libc on a small stack; the third argument is unmapped; prints its
 *                    errno
 * calls daemon       one ioctl of libc in a child of fork that outlives its parent
 * calls renamed      as daemon, by a child that overwrites its environment
 * calls restart      a read(2) that SIGALRM interrupts and that is restarted
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

struct info { uint64_t pointer; uint32_t size, op, number, pad; };
struct cs { uint64_t restore, execute, seq; uint32_t num_restore, num_execute, timeout, flags, ctx, pad; };
struct chunk { uint64_t handle; uint32_t queue, size, flags, engine, pad[10]; };
#define INFO _IOWR('H', 1, struct info)
#define CS _IOWR('d', 0x42, struct cs)

static int null_fd;

static void by_libc(int fd, uint32_t number)
{
	struct info info = { .number = number };
	if (ioctl(fd, INFO, &info) != -1 || errno != ENOTTY)
		exit(20);
}

static void by_syscall(int fd, uint32_t number)
{
	struct info info = { .number = number };
	if (syscall(SYS_ioctl, fd, INFO, &info) != -1 || errno != ENOTTY)
		exit(21);
}

static void by_asm(int fd, uint32_t number)
{
	struct info info = { .number = number };
#ifdef __x86_64__
	long result;
	__asm__ volatile("syscall" : "=a"(result)
		: "a"(SYS_ioctl), "D"((long)fd), "S"((long)INFO), "d"(&info) : "rcx", "r11", "memory");
	if (result != -ENOTTY)
		exit(22);
#else
	by_syscall(fd, number);
#endif
}

static void *thread(void *first)
{
	for (int i = 0; i < 5; i++)
		by_libc(null_fd, (uint32_t)(uintptr_t)first + i);
	return NULL;
}

static int shared_child(void *first)
{
	for (int i = 0; i < 5; i++)
		by_syscall(null_fd, (uint32_t)(uintptr_t)first + i);
	return 0;
}

static void reap(pid_t pid)
{
	int status;
	if (waitpid(pid, &status, __WALL) != pid || status != 0)
		exit(23);
}

static void send_fd(int socket, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(socket, &message, 0) != 1)
		exit(24);
}

static int receive_fd(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof control };
	int fd;
	if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		exit(25);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static int all(char *self)
{
	/* 1 to 15: libc, syscall(), inline assembly. */
	for (int i = 0; i < 5; i++)
		by_libc(null_fd, 1 + i);
	for (int i = 0; i < 5; i++)
		by_syscall(null_fd, 6 + i);
	for (int i = 0; i < 5; i++)
		by_asm(null_fd, 11 + i);
	/* 16 to 25: two threads. */
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, thread, (void *)(uintptr_t)(16 + 5 * i));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	/* 26 to 30: a child. */
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 5; i++)
			by_libc(null_fd, 26 + i);
		_exit(0);
	}
	reap(pid);
	/* 31 to 35: vfork and exec. */
	pid = vfork();
	if (pid == 0) {
		execl(self, self, "child", NULL);
		_exit(1);
	}
	reap(pid);
	/* 36 to 40: a process with the same descriptors. */
	static char stack[1 << 16] __attribute__((aligned(16)));
	pid = clone(shared_child, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, (void *)36);
	reap(pid);
	/* 41 to 45: a descriptor received over a socket. */
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(26);
	pid = fork();
	if (pid == 0) {
		int fd = receive_fd(pair[1]);
		for (int i = 0; i < 5; i++)
			by_libc(fd, 41 + i);
		_exit(0);
	}
	send_fd(pair[0], null_fd);
	reap(pid);
	/* 46 to 50: a descriptor obtained with pidfd_getfd(2). */
	int pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	int taken = syscall(SYS_pidfd_getfd, pidfd, null_fd, 0);
	if (taken < 0)
		taken = dup(null_fd);
	for (int i = 0; i < 5; i++)
		by_asm(taken, 46 + i);
	puts("done");
	return 7;
}

static void alarmed(int signal)
{
	(void)signal;
	by_libc(null_fd, 2);
}

static void *five_hundred(void *first)
{
	for (int i = 0; i < 500; i++)
		by_libc(null_fd, (uint32_t)(uintptr_t)first + i);
	return NULL;
}

static void *once(void *number)
{
	by_libc(null_fd, (uint32_t)(uintptr_t)number);
	return NULL;
}

static void *endless(void *unused)
{
	(void)unused;
	for (;;)
		by_libc(null_fd, 1u << 30);
	return NULL;
}

static void *after_vfork(void *unused)
{
	(void)unused;
	pid_t pid = vfork();
	if (pid == 0) {
		close(null_fd);
		_exit(0);
	}
	reap(pid);
	by_libc(null_fd, 2);
	printf("%ld\n", syscall(SYS_gettid));
	return NULL;
}

static volatile uint32_t alarms;

static void stormed(int signal)
{
	(void)signal;
	int saved = errno;
	by_libc(null_fd, (1u << 30) + alarms++);
	errno = saved;
}

static ucontext_t caller;
static char *beyond;

static void coroutine_body(void)
{
	memset(beyond, 0, 24);
	ioctl(null_fd, INFO, beyond);
	ioctl(null_fd, INFO, beyond);
	munmap(beyond, 4096);
	ioctl(null_fd, INFO, beyond);
	printf("%d\n", errno);
}

/* Publishes a record of an event: lost events, at the last time there is. */
static void publish(uint64_t *positions)
{
	struct __attribute__((packed)) {
		uint8_t tag;
		uint64_t time_ns, count;
	} event = { 10, UINT64_MAX, 1 };
	uint64_t *record = positions + 512 + positions[0] / 8;
	memcpy(record + 1, &event, sizeof event);
	positions[0] += 32;
	__atomic_store_n(record, 0x4745435200000000ul | sizeof event, __ATOMIC_RELEASE);
}

/* Overwrites the session's memory behind its header and its owners. */
static void scribble(const char *what)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long from, to;
	while (fgets(line, sizeof line, maps)) {
		if (!strstr(line, "memfd:gaudi-ring") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		/* The data of the first rings: each starts a page after its positions. */
		uint64_t *words = (uint64_t *)from;
		uint64_t bytes = words[3], stride = 4096 + bytes + (256 << 10);
		for (int ring = 0; ring < 4; ring++) {
			uint64_t *positions = (uint64_t *)(from + 4096 + 4096 + ring * stride);
			uint64_t *data = positions + 512;
			if (!strcmp(what, "positions"))
				positions[0] += 3;
			if (!strcmp(what, "future") && ring == 0)
				publish(positions);
			if (strncmp(what, "scribble", 8))
				continue;
			for (uint64_t i = 0; i < bytes / 8; i++)
				data[i] = what[8] ? 0x4745435200000000ul | 16 : 0xdeadbeefdeadbeeful;
		}
	}
	fclose(maps);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long count = argc > 2 ? atol(argv[2]) : 0;

	if (!strcmp(what, "fds")) {
		DIR *directory = opendir("/proc/self/fd");
		struct dirent *entry;
		while ((entry = readdir(directory)))
			if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory))
				puts(entry->d_name);
		return 0;
	}
	null_fd = open("/dev/null", O_RDWR);
	if (null_fd < 0)
		return 2;
	if (!strcmp(what, "all"))
		return all(argv[0]);
	if (!strcmp(what, "loop") || !strcmp(what, "libc") || !strcmp(what, "mixed")) {
		struct timespec from, to;
		clock_gettime(CLOCK_MONOTONIC, &from);
		if (!strcmp(what, "loop"))
			for (long i = 0; i < count; i++)
				by_syscall(null_fd, (uint32_t)i);
		else if (what[0] == 'l')
			for (long i = 0; i < count; i++)
				by_libc(null_fd, (uint32_t)i);
		else
			for (long i = 0; i < count; i++)
				syscall(SYS_getppid);
		clock_gettime(CLOCK_MONOTONIC, &to);
		double ns = (to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec);
		printf("%.1f\n", ns / count);
	} else if (!strcmp(what, "child")) {
		for (int i = 0; i < 5; i++)
			by_libc(null_fd, 31 + i);
	} else if (!strcmp(what, "signal")) {
		by_libc(null_fd, 1);
		raise((int)count);
	} else if (!strcmp(what, "sleep")) {
		printf("%d\n", getpid());
		fflush(stdout);
		for (uint32_t i = 0;; i++) {
			by_libc(null_fd, i);
			usleep(1000);
		}
	} else if (!strcmp(what, "files")) {
		int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
		int copy = dup(zero);
		dup2(zero, 40);
		dup2(0, 40);
		void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, zero, 0);
		munmap(page, 4096);
		close(copy);
		if (open("/dev/not-there", O_RDONLY) >= 0)
			return 3;
		if (argc > 2)
			execl(argv[0], argv[0], "child", NULL);
		close(zero);
	} else if (!strcmp(what, "compat")) {
#ifdef __x86_64__
		/* The argument must lie below 4 GiB. */
		struct info *info = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
		long result;
		info->number = 99;
		__asm__ volatile("int $0x80" : "=a"(result)
			: "a"(54L), "b"((long)null_fd), "c"((long)INFO), "d"(info) : "memory", "r8", "r9", "r10", "r11");
		printf("%ld\n", result);
#endif
	} else if (!strcmp(what, "pointers")) {
		struct chunk chunks[2] = { { .handle = 0x1111, .queue = 3, .size = 64 }, { .handle = 0x2222 } };
		struct cs cs = { .execute = (uintptr_t)chunks, .num_execute = 2 };
		char answer[100] = "an answer";
		struct info info = { .pointer = (uintptr_t)answer, .size = sizeof answer, .number = 5 };
		struct info wild = { .pointer = 16, .size = 1 << 30 };
		ioctl(null_fd, CS, &cs);
		ioctl(null_fd, INFO, &info);
		ioctl(null_fd, INFO, &wild);
		ioctl(null_fd, INFO, (void *)8);
		ioctl(-1, INFO, &info);
		cs.num_execute = 512;
		ioctl(null_fd, CS, &cs);
	} else if (!strcmp(what, "threads")) {
		pthread_t threads[64];
		for (long i = 0; i < count && i < 64; i++)
			pthread_create(&threads[i], NULL, five_hundred, (void *)(uintptr_t)(500 * i));
		for (long i = 0; i < count && i < 64; i++)
			pthread_join(threads[i], NULL);
	} else if (!strcmp(what, "sequence") || !strcmp(what, "busy")) {
		pthread_t one;
		if (what[0] == 'b')
			pthread_create(&one, NULL, endless, NULL);
		for (long i = 0; i < count; i++) {
			if (what[0] == 'b')
				usleep(1000);
			pthread_create(&one, NULL, once, (void *)(uintptr_t)i);
			pthread_join(one, NULL);
		}
	} else if (!strcmp(what, "storm")) {
		struct sigaction action = { .sa_handler = stormed };
		struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { { 0, 0 }, { 0, 0 } };
		sigaction(SIGALRM, &action, NULL);
		setitimer(ITIMER_REAL, &often, NULL);
		for (long i = 0; i < count; i++)
			by_libc(null_fd, (uint32_t)i);
		setitimer(ITIMER_REAL, &never, NULL);
		printf("%u\n", alarms);
	} else if (!strcmp(what, "vfork")) {
		by_libc(null_fd, 1);
		pid_t pid = vfork();
		if (pid == 0) {
			by_libc(null_fd, 2);
			_exit(0);
		}
		reap(pid);
		by_libc(null_fd, 3);
		printf("%d %d\n", getpid(), pid);
	} else if (!strcmp(what, "vfork-close") || !strcmp(what, "vfork-first")) {
		pthread_t one;
		by_libc(null_fd, 1);
		if (!strcmp(what, "vfork-close")) {
			after_vfork(NULL);
		} else {
			pthread_create(&one, NULL, after_vfork, NULL);
			pthread_join(one, NULL);
		}
		close(null_fd);
	} else if (!strcmp(what, "dlopen")) {
		void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
		int (*late)(int, void *) = library ? (int (*)(int, void *))dlsym(library, "late") : NULL;
		struct info info = { .number = 77 };
		if (!late || late(null_fd, &info) != -1 || errno != ENOTTY)
			return 6;
	} else if (!strncmp(what, "scribble", 8) || !strcmp(what, "positions") || !strcmp(what, "future")) {
		by_libc(null_fd, 1);
		usleep(50000);
		scribble(what);
		by_libc(null_fd, 2);
		puts("done");
	} else if (!strcmp(what, "coroutine")) {
		/* A stack of 64 KiB, and above it memory that the ioctls use. */
		char *memory = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		ucontext_t coroutine;

		beyond = memory + (1 << 16) + 4096;
		getcontext(&coroutine);
		coroutine.uc_stack.ss_sp = memory;
		coroutine.uc_stack.ss_size = 1 << 16;
		coroutine.uc_link = &caller;
		makecontext(&coroutine, coroutine_body, 0);
		swapcontext(&caller, &coroutine);
	} else if (!strcmp(what, "daemon") || !strcmp(what, "renamed")) {
		if (fork())
			_exit(0);
		for (char **row = environ; what[0] == 'r' && *row; row++)
			memset(*row, 'x', strlen(*row));
		usleep(200000);
		by_libc(null_fd, 1);
	} else if (!strcmp(what, "restart")) {
		struct sigaction action = { .sa_handler = alarmed, .sa_flags = SA_RESTART };
		int pipes[2];
		char byte = 0;
		sigaction(SIGALRM, &action, NULL);
		if (pipe(pipes))
			return 4;
		pid_t parent = getpid();
		pid_t pid = fork();
		if (pid == 0) {
			usleep(50000);
			kill(parent, SIGALRM);
			usleep(50000);
			return write(pipes[1], "y", 1) != 1;
		}
		/* With SA_RESTART, read(2) never fails with EINTR. */
		ssize_t got = read(pipes[0], &byte, 1);
		reap(pid);
		printf("%zd %c\n", got, byte);
	} else {
		return 1;
	}
	return 0;
}
