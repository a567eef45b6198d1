//! The kernel's interface: every system call by its number, every family of sockets, the interfaces of other programs.

use rustix::fs::{XattrFlags, setxattr};

use crate::support::Ran;

/// Calls that no run may make, by their numbers on this processor. A filter that answers says EPERM or ENOSYS; any other
/// answer comes from the kernel, which has then looked at the arguments.
#[cfg(target_arch = "x86_64")]
const REFUSED: &[(u32, &str)] = &[
    (101, "ptrace"),
    (103, "syslog"),
    (134, "uselib"),
    (136, "ustat"),
    (139, "sysfs"),
    (154, "modify_ldt"),
    (155, "pivot_root"),
    (156, "_sysctl"),
    (159, "adjtimex"),
    (161, "chroot"),
    (163, "acct"),
    (164, "settimeofday"),
    (165, "mount"),
    (166, "umount2"),
    (167, "swapon"),
    (168, "swapoff"),
    (169, "reboot"),
    (170, "sethostname"),
    (171, "setdomainname"),
    (172, "iopl"),
    (173, "ioperm"),
    (174, "create_module"),
    (175, "init_module"),
    (176, "delete_module"),
    (177, "get_kernel_syms"),
    (178, "query_module"),
    (179, "quotactl"),
    (180, "nfsservctl"),
    (212, "lookup_dcookie"),
    (227, "clock_settime"),
    (236, "vserver"),
    (237, "mbind"),
    (238, "set_mempolicy"),
    (239, "get_mempolicy"),
    (246, "kexec_load"),
    (248, "add_key"),
    (249, "request_key"),
    (250, "keyctl"),
    (256, "migrate_pages"),
    (272, "unshare"),
    (278, "vmsplice"),
    (279, "move_pages"),
    (298, "perf_event_open"),
    (300, "fanotify_init"),
    (301, "fanotify_mark"),
    (303, "name_to_handle_at"),
    (304, "open_by_handle_at"),
    (305, "clock_adjtime"),
    (308, "setns"),
    (310, "process_vm_readv"),
    (311, "process_vm_writev"),
    (312, "kcmp"),
    (313, "finit_module"),
    (320, "kexec_file_load"),
    (321, "bpf"),
    (323, "userfaultfd"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (427, "io_uring_register"),
    (428, "open_tree"),
    (429, "move_mount"),
    (430, "fsopen"),
    (431, "fsconfig"),
    (432, "fsmount"),
    (433, "fspick"),
    (435, "clone3"),
    (438, "pidfd_getfd"),
    (440, "process_madvise"),
    (442, "mount_setattr"),
    (443, "quotactl_fd"),
    (447, "memfd_secret"),
    (450, "set_mempolicy_home_node"),
    (451, "cachestat"),
    (457, "statmount"),
    (458, "listmount"),
    (459, "lsm_get_self_attr"),
    (460, "lsm_set_self_attr"),
    (461, "lsm_list_modules"),
    (467, "open_tree_attr"),
    (468, "file_getattr"),
    (469, "file_setattr"),
];

/// The numbers that no kernel had when the filter was written, and the numbers of the x32 interface.
const UNKNOWN: &str = "470..600, map { 0x40000000 + $_ } 0..600";

/// `calls(numbers)` makes each call in a child with arguments that do nothing, and tells the numbers whose answer is
/// neither EPERM nor ENOSYS.
const PERL: &str = "use strict;
my ($EPERM, $ENOSYS) = (1, 38);
sub calls { my @passed;
    for my $number (@_) {
        my $child = fork();
        if (!$child) { $! = 0; my $done = syscall($number, -1, 0, 0, 0, 0, 0); exit($done == -1 && ($! == $EPERM || $! == $ENOSYS) ? 0 : 1) }
        waitpid($child, 0);
        push @passed, $number if $?;
    }
    return @passed;
}
";

#[track_caller]
fn nothing_passed(ran: &Ran) {
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, ""), "these passed: {ran:?}");
}

/// A program of 64 bits that consists of this code and a few constants.
#[cfg(target_arch = "x86_64")]
fn elf(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut file = Vec::new();
    // Identification, then: executable, x86-64, version 1.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0");
    [BASE + HEADERS, 64, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    // No flags; sizes of the headers, one segment, no sections.
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // The segment: loaded, readable and executable.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    [0, BASE, BASE, size, size, 0x1000].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend(code);
    file
}

#[cfg(target_arch = "x86_64")]
in_every_sandbox! {
    fn calls_that_no_run_may_make(sandbox: &Sandbox) {
        let numbers: Vec<String> = REFUSED.iter().map(|(number, _)| number.to_string()).collect();
        let code = format!("{PERL}print join(' ', calls({}));", numbers.join(", "));
        let ran = sandbox.perl(&code);
        let passed: Vec<&str> = ran.stdout.split(' ').filter(|word| !word.is_empty()).collect();
        let names: Vec<_> =
            REFUSED.iter().filter(|(number, _)| passed.contains(&number.to_string().as_str())).collect();
        assert_eq!((ran.code(), names), (0, Vec::new()), "{ran:?}");
    }

    fn calls_that_are_not_known(sandbox: &Sandbox) {
        nothing_passed(&sandbox.perl(&format!("{PERL}print join(' ', calls({UNKNOWN}));")));
    }

    fn calls_of_programs_of_32_bits(sandbox: &Sandbox) {
        // getpid by int 0x80, then exit(0) by the ordinary interface.
        let code = [0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
        sandbox.put("program", elf(&code));
        let run = "chmod 755 program && ./program";
        let outside = sandbox.place.run(&["exec", "--mode", "host", "--", "sh", "-c", run]);
        assert_eq!(outside.code(), 0, "the program itself is wrong: {outside:?}");
        let inside = sandbox.sh(run);
        assert_eq!(inside.code(), 128 + 31, "it was not ended by SIGSYS: {inside:?}");
    }

    /// Numbers 0 and 1 are the caller's user and a user; the supervisor is among the processes of either.
    fn priorities_of_all_processes_of_a_user(sandbox: &Sandbox) {
        let code = "for my $user (0, 1, $<) {
            print \"setpriority $user \" unless syscall(141, 2, $user, 5) == -1 && $! == 1;
            print \"ioprio_set $user \" unless syscall(251, 3, $user, 16388) == -1 && $! == 1 }
        print 'its own' if syscall(141, 0, 0, 1) == -1 || syscall(251, 1, 0, 16388) == -1";
        nothing_passed(&sandbox.perl(code));
    }

    fn personalities_that_weaken_memory(sandbox: &Sandbox) {
        let code = "for my $value (0x400000, 0x100000, 0x200000, 0x440000, 0x4000000) {
            print \"$value \" unless syscall(135, $value) == -1 && $! == 1 }
        for my $value (0, 8, 0x20000, 0xffffffff) { print \"not $value \" if syscall(135, $value) == -1 }";
        nothing_passed(&sandbox.perl(code));
    }
}

#[cfg(target_arch = "x86_64")]
in_every_sandbox! {
    /// By `socket`, all that is no Internet, Unix or routing socket; by `socketpair`, all but Unix.
    fn families_of_sockets(sandbox: &Sandbox) {
        let code = "my $pair = pack('ii', 0, 0);
        for my $family (1..50) { for my $kind (1, 2, 3, 5) {
            my ($socket, $why) = (syscall(41, $family, $kind, 0), $! + 0);
            print \"socket $family \" unless grep({ $_ == $family } 1, 2, 10, 16) || $socket == -1 && $why == 1;
            my ($done, $because) = (syscall(53, $family, $kind, 0, $pair), $! + 0);
            print \"socketpair $family:$because \" unless $family == 1 || $done == -1 && $because == 1;
        } }
        for my $protocol (1..22) { print \"netlink $protocol \" unless syscall(41, 16, 3, $protocol) == -1 && $! == 1 }
        exit(syscall(53, 1, 1, 0, $pair) == 0 ? 0 : 1);";
        nothing_passed(&sandbox.perl(code));
        // Without a sandbox the kernel itself answers, by looking for a module of the family.
        assert!(sandbox.perl_outside(code).stdout.contains("socketpair 30"), "the attempt itself is wrong");
    }
}

#[cfg(target_arch = "x86_64")]
in_every_sandbox! {
    /// What copies trees with what lies below mounts, sets flags that only the host takes back, or locks encrypted files.
    fn requests_to_file_systems(sandbox: &Sandbox) {
        // Without a value, so that the kernel does nothing where it answers. None freezes a file system.
        let code = "my %requests = (BTRFS_IOC_SNAP_CREATE => 0x50009401, BTRFS_IOC_SUBVOL_SETFLAGS => 0x4008941a,
            BTRFS_IOC_SNAP_DESTROY => 0x5000940f, FS_IOC_REMOVE_ENCRYPTION_KEY => 0xc0406618,
            FS_IOC_SET_ENCRYPTION_POLICY => 0x800c6613, FS_IOC_ENABLE_VERITY => 0x40806685, FS_IOC_SETFLAGS => 0x40086602,
            FS_IOC_FSSETXATTR => 0x401c5820, FS_IOC_SETVERSION => 0x40087602, FITRIM => 0xc0185879,
            BCH_IOCTL_SUBVOLUME_CREATE => 0x4018bc10);
        open(my $file, '>', 'file') or die; opendir(my $directory, '.') or die;
        for my $name (sort keys %requests) { for my $number (fileno($file), fileno($directory)) {
            print \"$name $! \" unless syscall(16, $number, $requests{$name}, 0) == -1 && $! == 25 } }
        my $value = pack('x64');
        exit(syscall(16, fileno($file), 0x80086601, $value) == 0 || $! == 25 || $! == 95 ? 0 : 1);";
        nothing_passed(&sandbox.perl(code));
        assert!(sandbox.perl_outside(code).stdout.contains("FSSETXATTR"), "the attempt itself is wrong");
    }

    /// A default access control list opens what is made later to others; no umask takes it back.
    fn extended_attributes(sandbox: &Sandbox) {
        let code = "mkdir 'open'; open(my $file, '>', 'file') or die; my $name = 'system.posix_acl_default';
        my $list = pack('VvvVvvVvvV', 2, 1, 7, -1, 4, 7, -1, 32, 7, -1); my $value = 'x'; my $own = 'user.x';
        my $directory = 'open'; my $path = 'file'; my $at = -100;
        my $args = pack('QVV', unpack('Q', pack('p', $value)), 1, 0);
        print 'setxattr ' unless syscall(188, $directory, $name, $list, length($list), 0) == -1 && $! == 95;
        print 'lsetxattr ' unless syscall(189, $directory, $name, $list, length($list), 0) == -1 && $! == 95;
        print 'fsetxattr ' unless syscall(190, fileno($file), $own, $value, 1, 0) == -1 && $! == 95;
        print 'setxattrat ' unless syscall(463, $at, $path, 0, $own, $args, 16) == -1 && ($! == 95 || $! == 38);";
        nothing_passed(&sandbox.perl(code));
    }

    /// A device with the number 0 is a mark of an overlay. Any user may make one, also by renaming a file.
    fn devices_without_a_number(sandbox: &Sandbox) {
        let code = "my ($path, $new) = ('device', 'renamed'); open(my $file, '>', 'file') or die; my $old = 'file';
        for my $kind (0020000, 0060000) {
            print \"mknod $kind \" unless syscall(133, $path, $kind | 0600, 0) == -1 && $! == 1;
            print \"mknodat $kind \" unless syscall(259, -100, $path, $kind | 0600, 0) == -1 && $! == 1 }
        print 'rename ' unless syscall(316, -100, $old, -100, $new, 4) == -1 && $! == 1;
        my ($fifo, $plain) = ('fifo', 'plain');
        exit(syscall(133, $fifo, 0010600, 0) || syscall(259, -100, $plain, 0100600, 0) || syscall(316, -100, $old, -100, $new, 1));";
        nothing_passed(&sandbox.perl(code));
    }
}

in_every_sandbox! {
    /// A file with an extended attribute is copied, packed and unpacked without it.
    fn files_with_attributes_are_copied_without_them(sandbox: &Sandbox) {
        sandbox.put("file", b"text");
        let file = sandbox.place.work().join("file");
        let set = setxattr(&file, c"user.x", b"1", XattrFlags::empty());
        assert!(set.is_ok(), "{set:?}");
        for script in [
            "cp -a file copy",
            "cp -p file copied",
            "tar -cf all.tar file && mkdir unpacked && tar -xpf all.tar -C unpacked",
            "install -m 600 file installed",
            "python3 -c 'import shutil; shutil.copy2(\"file\", \"copied2\"); shutil.copytree(\".\", \"/tmp/tree\")'",
            "rsync -a file synced",
            "mv file /tmp/moved && mv /tmp/moved file",
        ] {
            let program = script.split(' ').next().unwrap();
            let is_there = match program {
                // Images may have an interpreter without its library.
                "python3" => "python3 -c 'import shutil'".to_owned(),
                _ => format!("command -v {program}"),
            };
            if sandbox.sh(&is_there).code() != 0 {
                continue;
            }
            let ran = sandbox.sh(script);
            assert_eq!(ran.code(), 0, "{script}: {ran:?}");
        }
    }

    /// What a filter must not break: interpreters, version control, pipes, threads and time.
    fn programs_go_on_working(sandbox: &Sandbox) {
        for script in [
            "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log | grep -q x",
            "node -e 'const {Worker} = require(\"worker_threads\"); new Worker(\"\", {eval: true}).on(\"exit\", code => process.exit(code))'",
            "python3 -c 'import threading, subprocess, time; t = threading.Thread(target=print); t.start(); t.join(); subprocess.check_call([\"true\"]); time.sleep(0)'",
            "perl -e 'socketpair(my $a, my $b, 1, 1, 0) or die; syswrite $a, \"x\"; sysread $b, my $c, 1; exit($c ne \"x\")'",
            "yes | head -c 1000000 | tail -c 5 | wc -c && date && df . >/dev/null && uname -a >/dev/null",
        ] {
            let program = script.split(' ').next().unwrap();
            if sandbox.sh(&format!("command -v {program}")).code() != 0 {
                continue;
            }
            let ran = sandbox.sh(script);
            assert_eq!(ran.code(), 0, "{script}: {ran:?}");
        }
    }
}

in_every_sandbox! {
    /// Where `core_pattern` is a pipe, the kernel takes no notice of any limit but 1, and starts its program as root of the host.
    fn limit_of_core_dumps_is_one_and_stays(sandbox: &Sandbox) {
        let core = "grep 'Max core' /proc/self/limits";
        let others = "grep 'Max nice' /proc/self/limits; grep 'Max realtime priority' /proc/self/limits";
        let crash = "sh -c 'kill -SEGV $$'; ls | grep core";
        let ran = sandbox.sh(&format!("{core}; ulimit -c 0; {core}; ulimit -c unlimited; {core}; {others}; {crash}"));
        let words: Vec<&str> = ran.stdout.split_whitespace().collect();
        let core = ["Max", "core", "file", "size", "1", "1", "bytes"];
        let [nice, realtime] = [["Max", "nice", "priority", "0", "0"], ["Max", "realtime", "priority", "0", "0"]];
        assert_eq!(words, [&core[..], &core, &core, &nice, &realtime].concat(), "{ran:?}");
    }
}

/// All instances of the machine share 4,096 pseudoterminals.
#[test]
fn a_run_has_256_pseudoterminals_and_is_killed_first_without_memory() {
    let place = crate::support::Place::new();
    let script = "import os\nn = 0\ntry:\n    while n < 400: os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY); n += 1\n\
                  except OSError: pass\nprint(n, open('/proc/self/oom_score_adj').read().strip())";
    let ran = place.run(&["exec", "--mode", "native", "--", "/usr/bin/python3", "-c", script]);
    assert_eq!(ran.stdout, "256 1000\n", "{ran:?}");
}
