//! Files outside, links, devices, the first process and what a run is handed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::sandbox::Sandbox;
use crate::support::{Place, Ran};

const SECRET: &str = "outside-the-workspace";

/// A file beside the workspace, as the host sees it.
fn lay_out(sandbox: &Sandbox) -> String {
    let directory = sandbox.place.home().join("private");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("file"), SECRET).unwrap();
    directory.join("file").display().to_string()
}

#[track_caller]
fn nothing_came_out(ran: &Ran, what: &str) {
    assert!(!ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET), "{what}: {ran:?}");
}

in_every_sandbox! {
    fn a_file_outside_by_every_path(sandbox: &Sandbox) {
        let file = lay_out(sandbox);
        symlink(&file, sandbox.place.work().join("absolute")).unwrap();
        symlink("../home/private/file", sandbox.place.work().join("relative")).unwrap();
        symlink("absolute", sandbox.place.work().join("chain")).unwrap();
        symlink("../home", sandbox.place.work().join("directory")).unwrap();
        let paths = [
            file.clone(),
            format!("/proc/self/root{file}"),
            format!("/proc/1/root{file}"),
            format!("/proc/self/cwd/../../../../../../..{file}"),
            format!("/proc/*/root{file}"),
            format!("/proc/*/cwd/../../../..{file}"),
            "absolute".into(),
            "relative".into(),
            "chain".into(),
            "directory/private/file".into(),
            "../home/private/file".into(),
        ];
        for path in &paths {
            nothing_came_out(&sandbox.sh(&format!("cat {path}")), path);
        }
        // Links that the run makes, a second name, a copy, a move.
        for script in [
            format!("ln -s {file} mine; cat mine"),
            format!("ln {file} second; cat second"),
            format!("cp {file} copy; cat copy"),
            format!("mv {file} moved; cat moved"),
            "mkdir -p d && cd d && ln -s ../absolute up && cat up".to_owned(),
        ] {
            nothing_came_out(&sandbox.sh(&script), &script);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), SECRET, "it is as it was");
    }

    fn writing_outside(sandbox: &Sandbox) {
        let file = lay_out(sandbox);
        symlink(&file, sandbox.place.work().join("link")).unwrap();
        let marker = format!("ringfence-attack-{}", std::process::id());
        for path in [
            file.clone(),
            "link".into(),
            format!("{}/new", sandbox.place.home().display()),
            format!("/etc/{marker}"),
            format!("/usr/{marker}"),
            format!("/{marker}"),
            format!("/tmp/{marker}"),
            format!("/dev/shm/{marker}"),
            format!("/var/tmp/{marker}"),
            format!("{}/{marker}", sandbox.place.state().display()),
        ] {
            sandbox.sh(&format!("mkdir -p $(dirname {path}) 2>/dev/null; echo changed > {path}"));
            if path.starts_with('/') && path != file {
                assert!(!std::path::Path::new(&path).exists(), "{path} came out");
            }
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), SECRET);
        assert_eq!(sandbox.sh("echo 1 > inside && cat inside").stdout, "1\n", "and inside one may write");
    }

    fn devices_and_second_names_of_the_system(sandbox: &Sandbox) {
        let ran = sandbox.sh(
            "mknod block b 8 0 && echo block; mknod char c 1 1 && echo char; ln /etc/passwd passwd && echo passwd
             for file in /dev/mem /dev/kmem /dev/port /dev/kmsg /dev/kvm /dev/sda /dev/vda /dev/nvme0n1 /dev/fuse /dev/net/tun /dev/uinput; do
                 (: < $file) 2>/dev/null && echo $file; done
             for file in null zero full random urandom; do test -c /dev/$file || echo no $file; done
             mkfifo fifo || echo no fifo",
        );
        assert_eq!(ran.stdout, "", "{ran:?}");
    }

    fn the_first_process(sandbox: &Sandbox) {
        let ran = sandbox.sh(
            "for file in mem environ maps auxv stack syscall; do head -c 1 /proc/1/$file 2>/dev/null | grep -q . && echo $file; done
             readlink /proc/1/fd/* /proc/1/cwd /proc/1/exe /proc/1/root 2>/dev/null
             for file in /proc/1/fd/*; do (: < $file) 2>/dev/null && echo $file; done
             for signal in KILL STOP TERM INT HUP SEGV USR1; do kill -$signal 1 2>/dev/null; done
             echo alive",
        );
        assert_eq!((ran.code(), ran.stdout.as_str()), (0, "alive\n"), "{ran:?}");
    }

    fn a_file_of_the_kernel_that_sets_the_machine(sandbox: &Sandbox) {
        let ran = sandbox.sh(
            "for file in sys/kernel/core_pattern sys/kernel/modprobe sys/kernel/hostname sys/vm/overcommit_memory sysrq-trigger irq/default_smp_affinity 1/oom_score_adj; do
                 (: >> /proc/$file) 2>/dev/null && echo $file; done
             (: >> /sys/fs/cgroup/cgroup.procs) 2>/dev/null && echo cgroup
             (: >> /sys/kernel/uevent_helper) 2>/dev/null && echo uevent",
        );
        assert_eq!(ran.stdout, "", "{ran:?}");
    }

    /// A directory is handed over as standard input: it must not lead anywhere.
    fn a_directory_as_standard_input(sandbox: &Sandbox) {
        lay_out(sandbox);
        let script = "ls /proc/self/fd/0/ ; cat /proc/self/fd/0/file /dev/stdin/file /proc/self/fd/0/../private/file; cd /proc/self/fd/0 && cat file";
        let mut command = sandbox.place.command(&sandbox.args(&[], &["sh", "-c", script]));
        let directory = fs::File::open(sandbox.place.home().join("private")).unwrap();
        let ran = Ran::from(command.stdin(Stdio::from(directory)).output().unwrap());
        nothing_came_out(&ran, script);
        assert!(!ran.stdout.lines().any(|line| line == "file"), "{ran:?}");
    }

    /// Somebody else reads the same pipe, or is at the other end of the socket: a shell that takes commands from there.
    fn standard_input_that_others_read(sandbox: &Sandbox) {
        let (pipe, other_end) = std::io::pipe().unwrap();
        let mut same = pipe.try_clone().unwrap();
        let (socket, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        for input in [Stdio::from(pipe), Stdio::from(std::os::fd::OwnedFd::from(socket))] {
            let script = "echo evil > /proc/self/fd/0; echo evil >&0; echo done";
            let mut command = sandbox.place.command(&sandbox.args(&[], &["sh", "-c", script]));
            let ran = Ran::from(command.stdin(input).output().unwrap());
            assert!(ran.stdout.ends_with("done\n"), "{ran:?}");
        }
        drop(other_end);
        let (mut written, mut sent) = (String::new(), String::new());
        same.read_to_string(&mut written).unwrap();
        peer.read_to_string(&mut sent).unwrap();
        assert_eq!((written.as_str(), sent.as_str()), ("", ""));
    }

    fn the_state_of_ringfence(sandbox: &Sandbox) {
        fs::create_dir_all(sandbox.place.state()).unwrap();
        fs::write(sandbox.place.state().join("settings.json"), format!("{{\"trusted_projects\": [\"/{SECRET}\"]}}"))
            .unwrap();
        let state = sandbox.place.state().display().to_string();
        let script = format!("find {state} ~/.ringfence /proc/*/root{state} -type f 2>/dev/null; cat {state}/settings.json; rm -rf {state}");
        let ran = sandbox.sh(&script);
        nothing_came_out(&ran, &script);
        assert!(!ran.stdout.contains("settings.json"), "{ran:?}");
        assert!(sandbox.place.state().join("settings.json").exists());
    }

    fn sockets_of_the_host(sandbox: &Sandbox) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let path = sandbox.place.home().join("socket");
        let _unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let code = format!(
            "use Socket; my $port = {port};
             for my $address ('127.0.0.1', '127.0.0.2', '0.0.0.0', '169.254.169.254', '10.0.2.2') {{
                 socket(my $socket, PF_INET, SOCK_STREAM, 0) or next;
                 $SIG{{ALRM}} = sub {{ die }}; alarm 2;
                 eval {{ print \"$address \" if connect($socket, sockaddr_in($port, inet_aton($address))) }}; alarm 0 }}
             socket(my $unix, PF_UNIX, SOCK_STREAM, 0);
             print 'unix' if connect($unix, sockaddr_un('{}'));",
            path.display()
        );
        let inside = sandbox.perl(&code);
        assert_eq!((inside.code(), inside.stdout.as_str()), (0, ""), "{inside:?}");
        let outside = sandbox.perl_outside(&code).stdout;
        assert!(outside.contains("127.0.0.1") && outside.contains("unix"), "the attempt itself is wrong: {outside}");
    }
}

#[cfg(target_arch = "x86_64")]
in_every_sandbox! {
    fn limits_and_priority_of_the_first_process(sandbox: &Sandbox) {
        let code = "my ($old, $new, $mask, $zero) = (pack('QQ', 0, 0), pack('QQ', 3, 3), pack('Q', 1), pack('Q6', 0, 0, 0, 0, 0, 0));
            print 'set ' if syscall(302, 1, 7, $new, 0) == 0;
            print 'read ' if syscall(302, 1, 7, 0, $old) == 0;
            print 'priority ' if syscall(141, 0, 1, 19) == 0;
            print 'processors ' if syscall(203, 1, 8, $mask) == 0;
            print 'scheduler ' if syscall(144, 1, 5, $zero) == 0;
            print 'parameters ' if syscall(142, 1, $zero) == 0;
            print 'disk ' if syscall(251, 1, 1, 3 << 13) == 0;
            # A process of its own is another matter.
            print 'own ' unless syscall(302, 0, 7, 0, $old) == 0 && syscall(302, $$ + 0, 7, 0, $old) == 0;";
        let ran = sandbox.perl(code);
        assert_eq!((ran.code(), ran.stdout.as_str()), (0, ""), "{ran:?}");
    }
}

/// A user who may write below a directory of the system can make any number of sockets there. Only root can make one for the test.
#[test]
fn many_sockets_below_the_shown_system_hide_their_directory() {
    use std::os::unix::net::UnixListener;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let shown = tempfile::tempdir_in("/opt").unwrap();
    let work = shown.path().join("service/work");
    fs::create_dir_all(&work).unwrap();
    symlink("service", shown.path().join("link")).unwrap();
    let bind = |number| UnixListener::bind(shown.path().join(format!("link/{number}"))).unwrap();
    let listeners: Vec<_> = (0..70).map(bind).collect();
    let place = Place::new();
    let [directory, work] = [&shown.path().join("service"), &work].map(|path| path.display().to_string());
    let kinds = |options: &[&str]| {
        let script = format!("cd {directory} && stat -c %F [0-9]* | sort | uniq -c");
        let ran = place.run(&[&["exec", "--mode", "native"], options, &["--", "sh", "-c", &script]].concat());
        ran.expect_code(0).stdout.trim().to_owned()
    };
    assert_eq!(kinds(&[]), "");
    // A directory above what is named for the run is not hidden.
    assert_eq!(kinds(&["-C", &work]), format!("{} regular empty file", listeners.len()));
}

/// A home below a directory that every run sees, by its path and by a link. Only root can make one.
#[test]
fn home_below_the_shown_system_is_empty() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let shown = tempfile::tempdir_in("/opt").unwrap();
    let home = shown.path().join("homes/u");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join("diary"), SECRET).unwrap();
    fs::write(home.join(".ssh/id_ed25519"), SECRET).unwrap();
    let place = Place::new();
    let link = place.work().parent().unwrap().join("hlink");
    symlink(&home, &link).unwrap();
    for named in [&home, &link] {
        let script = format!(
            "cd /; find {0} -type f | xargs -r cat; cat {0}/diary; echo new > $HOME/f && cat $HOME/f",
            home.display()
        );
        let args = ["exec", "--mode", "native", "--", "sh", "-c", &script];
        let ran = Ran::from(place.command(&args).env("HOME", named).output().unwrap());
        assert!(ran.stdout == "new\n" && ran.code() == 0, "{}: {ran:?}", named.display());
    }
    // What is named below it is seen, and a workspace too.
    fs::create_dir(home.join("project")).unwrap();
    fs::write(home.join("project/file"), "mine").unwrap();
    let project = home.join("project").display().to_string();
    for named in [&home, &link] {
        let script = format!("cat {project}/file; ls {}", home.display());
        for (args, script, seen) in
            [(["-C", &project], "cat file", "mine"), (["--read", &project], script.as_str(), "mineproject\n")]
        {
            let words = [&["exec", "--mode", "native"][..], &args, &["--", "sh", "-c", script]].concat();
            let ran = Ran::from(place.command(&words).env("HOME", named).output().unwrap());
            assert_eq!(ran.stdout, seen, "{}: {ran:?}", named.display());
        }
    }
}

/// Other users cannot read it, and root's runs are like other users there.
#[test]
fn files_of_root_in_etc_are_hidden_from_its_runs() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::Builder::new().prefix("ringfence-test").tempdir_in("/etc").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (file, mode) in [("key", 0o640), ("open", 0o644)] {
        fs::write(directory.path().join(file), file).unwrap();
        fs::set_permissions(directory.path().join(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    let place = Place::new();
    let script = format!("cd {}; cat key open", directory.path().display());
    let ran = place.run(&["exec", "--mode", "native", "--", "sh", "-c", &script]);
    assert_eq!(ran.stdout, "open", "{ran:?}");
}
