//! What two published checklists of agent sandboxes ask for, in cases of our own.
//!
//! The lists are the sandbox tests of anthropic-experimental/sandbox-runtime and of openai/codex. Two of their cases are
//! decided otherwise here: Unix sockets can be made inside (the host's are out of reach), and `git init` in a
//! subdirectory is allowed (a new repository is reported after the run).

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::sandbox::Sandbox;

/// What programs of the user would execute or obey, in the root of a workspace.
const IN_THE_ROOT: [&str; 10] = [
    ".mcp.json",
    ".gitmodules",
    ".git/config",
    ".git/hooks/pre-commit",
    ".vscode/tasks.json",
    ".idea/workspace.xml",
    ".claude/commands/x.md",
    ".claude/agents/x.md",
    ".claude/settings.json",
    ".codex/config.toml",
];

/// Files with which shells and tools start.
const START_UP: [&str; 7] =
    [".bashrc", ".zshrc", ".profile", ".bash_profile", ".zprofile", ".gitconfig", ".ripgreprc"];

/// What agents need in a repository, and beside its configuration.
const WRITABLE: [&str; 4] = [".git/objects/x", ".git/refs/heads/x", ".git/index", ".claude/other"];

fn git(sandbox: &Sandbox, directory: &str, args: &[&str]) {
    let directory = sandbox.place.work().join(directory);
    fs::create_dir_all(&directory).unwrap();
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"];
    let done = Command::new("git").args(identity).args(args).current_dir(directory).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Ways to change a file: `{}` is its path.
const WAYS: [(&str, &str); 5] = [
    ("written", "mkdir -p $(dirname {}); echo attack >> {}"),
    ("replaced", "echo attack > other-$$; mv -f other-$$ {}; rm -f other-$$"),
    ("made a link", "ln -sfn /tmp {}"),
    ("removed", "rm -rf {}"),
    ("removed with its directory", "rm -rf $(dirname {}) && mkdir -p $(dirname {}) && echo attack > {}"),
];

/// Tries to change each in every way, and tells what the host then sees changed.
fn changed(sandbox: &Sandbox, paths: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for (way, script) in WAYS {
        let before: Vec<_> = paths.iter().map(|path| state(sandbox, path)).collect();
        // What lies in the root has no directory that a run could remove.
        let tried = paths.iter().filter(|path| path.contains('/') || !way.ends_with("directory"));
        let scripts: Vec<String> = tried.map(|path| script.replace("{}", path)).collect();
        sandbox.sh(&scripts.join("\n"));
        let now = paths.iter().map(|path| state(sandbox, path));
        let differs = now.zip(before).zip(paths).filter(|((now, before), _)| now != before);
        all.extend(differs.map(|(_, path)| format!("{path} was {way}")));
    }
    all
}

fn state(sandbox: &Sandbox, path: &str) -> Option<(bool, Vec<u8>)> {
    let path = sandbox.place.work().join(path);
    let data = fs::symlink_metadata(&path).ok()?;
    Some((data.is_symlink(), fs::read(&path).unwrap_or_default()))
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn below(directory: &str, paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| format!("{directory}/{path}")).collect()
}

in_every_sandbox! {
    fn protected_names_in_the_root(sandbox: &Sandbox) {
        git(sandbox, ".", &["init", "-q"]);
        assert_eq!(changed(sandbox, &owned(&IN_THE_ROOT)), Vec::<String>::new());
    }

    fn protected_names_that_exist_in_the_root(sandbox: &Sandbox) {
        git(sandbox, ".", &["init", "-q"]);
        for path in IN_THE_ROOT {
            sandbox.put(path, "the user's own\n");
        }
        assert_eq!(changed(sandbox, &owned(&IN_THE_ROOT)), Vec::<String>::new());
    }

    fn start_up_files_in_the_root(sandbox: &Sandbox) {
        assert_eq!(changed(sandbox, &owned(&START_UP)), Vec::<String>::new());
    }

    fn start_up_files_that_exist_in_the_root(sandbox: &Sandbox) {
        for path in START_UP {
            sandbox.put(path, "the user's own\n");
        }
        assert_eq!(changed(sandbox, &owned(&START_UP)), Vec::<String>::new());
    }

    fn protected_names_that_exist_in_subdirectories(sandbox: &Sandbox) {
        let names = ["a/.mcp.json", "a/.vscode/tasks.json", "a/b/.idea/x.xml", "a/b/.claude/settings.json", "a/b/c/.bashrc", "a/.gitconfig"];
        for path in names {
            sandbox.put(path, "the user's own\n");
        }
        assert_eq!(changed(sandbox, &owned(&names)), Vec::<String>::new());
    }

    fn repositories_below_that_exist(sandbox: &Sandbox) {
        for directory in ["a", "a/b/c"] {
            git(sandbox, directory, &["init", "-q"]);
            let names = [".git/config", ".git/hooks/post-checkout", ".git/info/attributes"];
            assert_eq!(changed(sandbox, &below(directory, &names)), Vec::<String>::new());
            sandbox.sh(&format!("mv {directory}/.git {directory}/was; rm -rf {directory}/.git"));
            assert!(sandbox.place.work().join(directory).join(".git/config").exists(), "{directory} was moved away");
        }
    }

    fn hooks_elsewhere(sandbox: &Sandbox) {
        git(sandbox, ".", &["init", "-q"]);
        git(sandbox, ".", &["config", "core.hooksPath", ".husky"]);
        sandbox.put(".husky/pre-commit", "#!/bin/sh\n");
        let names = [".husky/pre-commit", ".husky/post-merge"];
        assert_eq!(changed(sandbox, &owned(&names)), Vec::<String>::new());
    }

    /// A repository whose `HEAD` is gone is none, and git would take the root for a bare one.
    fn the_name_of_head(sandbox: &Sandbox) {
        git(sandbox, ".", &["init", "-q"]);
        git(sandbox, ".", &["commit", "-q", "--allow-empty", "-m", "x"]);
        sandbox.sh("mv .git/HEAD .git/H; rm -f .git/HEAD; ln -sf /tmp .git/HEAD; mv .git/info .git/i");
        let head = fs::read_to_string(sandbox.place.work().join(".git/HEAD")).unwrap_or_default();
        assert_eq!(head, "ref: refs/heads/main\n");
        assert!(!sandbox.place.work().join(".git/i").exists(), ".git/info was moved away");
    }

    fn work_in_a_repository_is_possible(sandbox: &Sandbox) {
        git(sandbox, ".", &["init", "-q"]);
        let ran = sandbox.sh(
            "set -e; echo 1 > f; git add f; git -c user.name=a -c user.email=a@b commit -qm one
             git checkout -qb other; echo 2 > f; git -c user.name=a -c user.email=a@b commit -qam two; git log --oneline | wc -l",
        );
        assert_eq!((ran.code(), ran.stdout.trim()), (0, "2"), "{ran:?}");
        sandbox.put(".claude/notes.md", "the user's own\n");
        for path in WRITABLE {
            let ran = sandbox.sh(&format!("mkdir -p $(dirname {path}) && echo x >> {path}"));
            assert_eq!(ran.code(), 0, "{path}: {ran:?}");
        }
    }

    fn a_protected_name_that_is_a_link(sandbox: &Sandbox) {
        let elsewhere = sandbox.place.home().join("codex");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, sandbox.place.work().join(".codex")).unwrap();
        let ran = sandbox.place.run(&sandbox.args(&[], &["sh", "-c", "echo attack > .codex/config.toml"]));
        assert_ne!(ran.code(), 0, "{ran:?}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "it led out");
    }

    fn empty_files_of_the_user_stay(sandbox: &Sandbox) {
        for path in [".mcp.json", ".envrc", ".bashrc", "plain"] {
            sandbox.put(path, "");
        }
        sandbox.sh("true");
        sandbox.sh("rm -f .mcp.json .envrc; true");
        for path in [".mcp.json", ".envrc", ".bashrc", "plain"] {
            assert!(sandbox.place.work().join(path).exists(), "{path} is gone");
        }
        let left = fs::read_dir(sandbox.place.work()).unwrap().count();
        assert_eq!(left, 4, "something of ringfence was left");
    }

    fn denied_files(sandbox: &Sandbox) {
        sandbox.put(".env", "KEY=1");
        sandbox.put("deep/er/key.pem", "KEY=1");
        fs::hard_link(sandbox.place.work().join(".env"), sandbox.place.work().join("second")).unwrap();
        let ran = sandbox.sh(
            "cat .env second deep/er/key.pem; mv deep other; cat other/er/key.pem; cp -r . /tmp/copy; cat /tmp/copy/.env /tmp/copy/second; ln -s .env link; cat link; tar c . | cat",
        );
        assert!(!ran.stdout.contains("KEY=1"), "{ran:?}");
    }

    fn more_rights(sandbox: &Sandbox) {
        let ran = sandbox.sh(
            "for command in 'sudo -n id' 'su root -c id' 'chroot / id' 'mount -t tmpfs none /tmp' 'umount /proc' 'unshare -U id' 'unshare -n id' 'nsenter -t 1 -m id' 'capsh --has-p=cap_sys_admin' 'chmod u+s /bin/sh'; do
                 $command >/dev/null 2>&1 && echo \"$command\"; done
             grep -E '^Cap(Eff|Prm|Inh|Amb):' /proc/self/status | grep -v 0000000000000000
             grep -q '^NoNewPrivs:.*1$' /proc/self/status || echo privileges
             grep -q '^Seccomp:.*2$' /proc/self/status || echo filter",
        );
        assert_eq!(ran.stdout, "", "{ran:?}");
    }

    fn every_protocol(sandbox: &Sandbox) {
        let ran = sandbox.exec(
            &[],
            &[
                "bash",
                "-c",
                "for command in 'ping -c 1 -W 1 127.0.0.53' 'ping -c 1 -W 1 1.1.1.1' 'nc -w 1 -z 1.1.1.1 80' 'curl -sS -m 2 http://1.1.1.1/' 'curl -sS -m 2 https://example.com/' 'wget -q -T 2 -t 1 http://example.com/' 'ssh -o BatchMode=yes -o ConnectTimeout=2 -o StrictHostKeyChecking=no 1.1.1.1 true' 'getent ahosts example.com' 'git ls-remote https://example.com/x.git' 'git ls-remote git://1.1.1.1/x.git'; do
                     timeout 5 $command >/dev/null 2>&1 && echo \"$command\"; done
                 for address in tcp/1.1.1.1/80 tcp/8.8.8.8/53 tcp/169.254.169.254/80 udp/8.8.8.8/53; do
                     (timeout 2 bash -c \"echo x > /dev/$address\") 2>/dev/null && echo $address; done
                 true",
            ],
        );
        assert_eq!((ran.code(), ran.stdout.as_str()), (0, ""), "{ran:?}");
    }

    fn a_network_of_its_own(sandbox: &Sandbox) {
        // Sockets can be used, among the processes of the run.
        let code = "use Socket; for my $family (PF_INET, PF_UNIX) {
            socket(my $server, $family, SOCK_STREAM, 0) or die;
            bind($server, $family == PF_INET ? sockaddr_in(0, INADDR_LOOPBACK) : sockaddr_un('/tmp/socket')) or die $!;
            listen($server, 1) or die; my $name = getsockname($server);
            socket(my $client, $family, SOCK_STREAM, 0) or die; connect($client, $name) or die $! } print 'done'";
        let ran = sandbox.perl(code);
        assert_eq!((ran.code(), ran.stdout.as_str()), (0, "done"), "{ran:?}");
    }
}
