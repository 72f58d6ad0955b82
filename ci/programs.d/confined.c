// Runs a program as a container without any right does: with no new privileges, and under a seccomp
// filter that refuses what Docker's default profile refuses to a process without capabilities.
//
//     confined PROGRAM [ARGUMENT...]
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define IS(value, then) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1), then
#define NO(call) IS(__NR_##call, REFUSE(EPERM))

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define NEW_NAMESPACES \
    (CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUSER | CLONE_NEWUTS)

static struct sock_filter filter[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
    REFUSE(EPERM),
    LOAD(nr),
    NO(acct), NO(add_key), NO(bpf), NO(clock_adjtime), NO(clock_settime), NO(delete_module),
    NO(fanotify_init), NO(finit_module), NO(fsconfig), NO(fsmount), NO(fsopen), NO(fspick),
    NO(get_mempolicy), NO(init_module), NO(io_uring_enter), NO(io_uring_register), NO(io_uring_setup),
    NO(kcmp), NO(kexec_load), NO(keyctl), NO(mbind), NO(migrate_pages), NO(mount), NO(mount_setattr),
    NO(move_mount), NO(move_pages), NO(open_by_handle_at), NO(open_tree), NO(perf_event_open),
    NO(pivot_root), NO(quotactl), NO(quotactl_fd), NO(reboot), NO(request_key), NO(set_mempolicy),
    NO(sethostname), NO(setns), NO(settimeofday), NO(swapoff), NO(swapon), NO(syslog), NO(umount2),
    NO(unshare), NO(userfaultfd), NO(vhangup),
    // The C library then makes threads by clone.
    IS(__NR_clone3, REFUSE(ENOSYS)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
    REFUSE(EPERM),
    ALLOW,
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_VSOCK, 0, 1),
    REFUSE(EPERM),
    ALLOW,
    ALLOW,
};

int main(int argc, char **argv) {
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (argc < 2) {
        fprintf(stderr, "confined: which program?\n");
        return 2;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("confined: seccomp");
        return 1;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
