//! The home that the list of accounts has for this user, which is where a login leads: `HOME` may name another directory.

use std::fs;
use std::path::PathBuf;

use ringfence_workspace::read_bounded;

/// The list of accounts. Those of a directory service are not in it.
const ACCOUNTS: &str = "/etc/passwd";
/// No list of accounts is longer, in bytes.
const MAX_ACCOUNTS_BYTES: u64 = 4 << 20;

/// The home of the user of this process.
pub(crate) fn find() -> Option<PathBuf> {
    let list = read_bounded(fs::File::open(ACCOUNTS).ok()?, MAX_ACCOUNTS_BYTES).ok()?;
    home_of(rustix::process::getuid().as_raw(), &String::from_utf8_lossy(&list))
}

/// The home of a user by a list of accounts. Services have none of their own: `/`, or a path that does not begin with one.
fn home_of(uid: u32, list: &str) -> Option<PathBuf> {
    let uid = uid.to_string();
    let account = list.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()))?;
    let home: PathBuf = PathBuf::from(account.split(':').nth(5)?).components().collect();
    (home.is_absolute() && home.parent().is_some()).then_some(home)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::home_of;

    #[test]
    fn home_is_that_of_the_first_account_of_the_user() {
        let list = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000:Me,,:/h/me/:/bin/sh\nalias:x:1000:1:::\nbin:x:2:2::/:\nx:x:3\n";
        assert_eq!(home_of(0, list).as_deref(), Some(Path::new("/root")));
        assert_eq!(home_of(1000, list).as_deref(), Some(Path::new("/h/me")));
        for uid in [1, 2, 3] {
            assert_eq!(home_of(uid, list), None, "{uid}");
        }
    }
}
