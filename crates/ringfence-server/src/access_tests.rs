//! The rule of access, case by case.

use super::{Access, Carried, Denial, Need, Peer, Seen, Who, is_loopback_name};

fn seen<'a>(peer: Peer, carried: Carried<'a>) -> Seen<'a> {
    Seen { peer, host: Some("127.0.0.1:4301"), origin: None, fetch_site: None, navigates: false, carried }
}

fn key(key: &str) -> Carried<'_> {
    Carried { key: Some(key), ..Carried::default() }
}

fn bearer(token: &str) -> Carried<'_> {
    Carried { bearer: Some(token), ..Carried::default() }
}

const NONE: Carried<'static> = Carried { key: None, bearer: None, session: false };

#[test]
fn what_is_right_lets_in_from_anywhere_and_what_is_wrong_nowhere() {
    let access = Access::new(Some("k1, k2"), Some("s"), Some("false"));
    for peer in [Peer::Socket, Peer::Loopback, Peer::Elsewhere] {
        assert!(matches!(access.decide(Need::Control, &seen(peer, key("k2"))), Ok(Who::Key(_))));
        assert_eq!(access.decide(Need::Control, &seen(peer, bearer("s"))), Ok(Who::Bearer));
        assert_eq!(access.decide(Need::Read, &seen(peer, key("s"))), Err(Denial::WrongKey));
        assert_eq!(access.decide(Need::Read, &seen(peer, bearer("k1"))), Err(Denial::WrongToken));
    }
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, NONE)), Err(Denial::Nothing));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Elsewhere, NONE)), Err(Denial::Nothing));
    assert_eq!(access.decide(Need::Control, &seen(Peer::Socket, NONE)), Ok(Who::Socket));
}

#[test]
fn without_a_secret_an_empty_one_does_not_let_in() {
    let access = Access::new(Some(" , "), Some(" "), None);
    assert!(!access.is_guarded());
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, key(""))), Err(Denial::WrongKey));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, bearer(""))), Err(Denial::WrongToken));
}

#[test]
fn local_is_the_peer_and_the_name_and_the_origin() {
    let access = Access::new(None, None, None);
    let local = seen(Peer::Loopback, NONE);
    assert_eq!(access.decide(Need::Control, &local), Ok(Who::Local));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Elsewhere, NONE)), Err(Denial::NotLocal));
    for host in [None, Some("evil.example"), Some("127.0.0.1.evil.example"), Some("localhost.evil:80")] {
        assert_eq!(access.decide(Need::Read, &Seen { host, ..local }), Err(Denial::NotLocal), "{host:?}");
    }
    for origin in ["http://evil.example", "null", "http://127.0.0.1:80", "file://", "app://127.0.0.1:4301"] {
        let cross = Seen { origin: Some(origin), ..local };
        assert_eq!(access.decide(Need::Read, &cross), Err(Denial::CrossSite), "{origin}");
    }
    let own = Seen { origin: Some("http://127.0.0.1:4301"), ..local };
    assert_eq!(access.decide(Need::Control, &own), Ok(Who::Local));
    for site in ["cross-site", "same-site"] {
        let cross = Seen { fetch_site: Some(site), ..local };
        assert_eq!(access.decide(Need::Read, &cross), Err(Denial::CrossSite), "{site}");
        assert_eq!(access.decide(Need::Read, &Seen { navigates: true, ..cross }), Ok(Who::Local));
    }
}

#[test]
fn the_switch_is_for_control_without_a_key_alone() {
    for (word, control) in [(None, true), (Some("true"), true), (Some("no"), true), (Some(" False "), false)]
    {
        let access = Access::new(None, None, word);
        let local = seen(Peer::Loopback, NONE);
        let expected = if control { Ok(Who::Local) } else { Err(Denial::NoControl) };
        assert_eq!(access.decide(Need::Control, &local), expected, "{word:?}");
        assert_eq!(access.decide(Need::Change, &local), Ok(Who::Local));
    }
}

#[test]
fn a_session_is_worth_nothing_to_a_page_from_elsewhere() {
    let access = Access::new(None, Some("s"), None);
    let with = Seen {
        host: Some("box.example:4301"),
        ..seen(Peer::Elsewhere, Carried { session: true, ..Carried::default() })
    };
    assert_eq!(access.decide(Need::Control, &with), Ok(Who::Session));
    let cross = Seen { origin: Some("https://evil.example"), ..with };
    assert_eq!(access.decide(Need::Read, &cross), Err(Denial::CrossSite));
}

#[test]
fn names_of_loopback_are_these_and_no_others() {
    for name in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.0.1:4301", "[::1]", "[::1]:4301"] {
        assert!(is_loopback_name(name), "{name}");
    }
    for name in [
        "",
        ":80",
        "0.0.0.0",
        "::1",
        "[::1]x",
        "[::1",
        "localhost:x",
        "localhost.",
        "127.0.0.1@evil",
        "[::2]",
    ] {
        assert!(!is_loopback_name(name), "{name}");
    }
}
