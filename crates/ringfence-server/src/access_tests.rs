//! The rule of access, case by case.

use super::{Access, Carried, Denial, Need, Peer, Seen, Who, is_loopback_name};

fn seen<'a>(peer: Peer, carried: Carried<'a>) -> Seen<'a> {
    Seen {
        peer,
        host: Some("127.0.0.1:4301"),
        origin: None,
        fetch_site: None,
        navigates: false,
        changes: false,
        carried,
    }
}

fn key(key: &str) -> Carried<'_> {
    Carried { key: Some(key), ..Carried::default() }
}

fn bearer(token: &str) -> Carried<'_> {
    Carried { bearer: Some(token), ..Carried::default() }
}

const NONE: Carried<'static> = Carried { key: None, bearer: None, session: false };

#[test]
fn right_credential_lets_in_from_anywhere_and_a_wrong_one_nowhere() {
    let access = Access::new(Some("own"), Some("k1, k2"), Some("s"), Some("false"));
    for peer in [Peer::Socket, Peer::Loopback, Peer::Elsewhere] {
        assert!(matches!(access.decide(Need::Control, &seen(peer, key("k2"))), Ok(Who::Key(_))));
        assert_eq!(access.decide(Need::Control, &seen(peer, bearer("s"))), Ok(Who::Bearer));
        assert_eq!(access.decide(Need::Control, &seen(peer, bearer("own"))), Ok(Who::Owner));
        for wrong in ["s", "own", "", "k1, k2"] {
            assert_eq!(access.decide(Need::Read, &seen(peer, key(wrong))), Err(Denial::WrongKey));
        }
        for wrong in ["k1", "", "ow", "own ", "OWN"] {
            assert_eq!(access.decide(Need::Read, &seen(peer, bearer(wrong))), Err(Denial::WrongToken));
        }
    }
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, NONE)), Err(Denial::Nothing));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Elsewhere, NONE)), Err(Denial::Nothing));
    assert_eq!(access.decide(Need::Control, &seen(Peer::Socket, NONE)), Ok(Who::Socket));
}

#[test]
fn run_on_the_unix_socket_is_let_in_by_nothing() {
    let access = Access::new(Some("own"), Some("k1"), Some("s"), Some("true"));
    for carried in [NONE, key("k1"), bearer("own"), bearer("s"), Carried { session: true, ..NONE }] {
        for need in [Need::Read, Need::Change, Need::Control] {
            assert_eq!(access.decide(need, &seen(Peer::Run, carried)), Err(Denial::NotOwner), "{carried:?}");
        }
    }
    assert_eq!(access.decide(Need::Nothing, &seen(Peer::Run, NONE)), Ok(Who::Anybody));
}

#[test]
fn empty_keys_are_no_keys() {
    let access = Access::new(None, Some(" , "), Some(" "), None);
    assert!(!access.has_keys());
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, key(""))), Err(Denial::WrongKey));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Loopback, bearer(""))), Err(Denial::WrongToken));
}

#[test]
fn loopback_without_a_credential_needs_the_switch_and_no_keys() {
    let local = seen(Peer::Loopback, NONE);
    for (word, on) in [
        (None, false),
        (Some(""), false),
        (Some(" "), false),
        (Some(" False "), false),
        (Some("true"), true),
        (Some("no"), true),
        (Some("0"), true),
    ] {
        let expected = if on { Ok(Who::Local) } else { Err(Denial::Nothing) };
        for need in [Need::Read, Need::Change, Need::Control] {
            assert_eq!(Access::new(Some("own"), None, None, word).decide(need, &local), expected, "{word:?}");
            let keyed = Access::new(Some("own"), Some("k"), None, word);
            assert_eq!(keyed.decide(need, &local), Err(Denial::Nothing), "{word:?}");
        }
    }
}

#[test]
fn local_is_the_peer_and_the_name_and_the_origin() {
    let access = Access::new(Some("own"), None, None, Some("true"));
    let local = seen(Peer::Loopback, NONE);
    assert_eq!(access.decide(Need::Control, &local), Ok(Who::Local));
    assert_eq!(access.decide(Need::Read, &seen(Peer::Elsewhere, NONE)), Err(Denial::Nothing));
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
fn session_is_worth_nothing_to_a_page_from_elsewhere() {
    let access = Access::new(Some("own"), None, Some("s"), None);
    let with = Seen {
        host: Some("box.example:4301"),
        ..seen(Peer::Elsewhere, Carried { session: true, ..Carried::default() })
    };
    assert_eq!(access.decide(Need::Control, &with), Ok(Who::Session));
    let cross = Seen { origin: Some("https://evil.example"), ..with };
    assert_eq!(access.decide(Need::Read, &cross), Err(Denial::CrossSite));
    let change = Seen { changes: true, ..with };
    assert_eq!(access.decide(Need::Change, &change), Err(Denial::CrossSite), "without an origin");
    let own = Seen { origin: Some("https://box.example:4301"), ..change };
    assert_eq!(access.decide(Need::Change, &own), Ok(Who::Session));
    for site in ["cross-site", "same-site"] {
        let forged = Seen { fetch_site: Some(site), ..own };
        assert_eq!(access.decide(Need::Change, &forged), Err(Denial::CrossSite), "{site}");
    }
}

#[test]
fn open_routes_know_a_session_and_look_at_no_key() {
    let access = Access::new(Some("own"), Some("short"), None, None);
    let asked = |carried| access.decide(Need::Nothing, &seen(Peer::Elsewhere, carried));
    assert_eq!(asked(NONE), Ok(Who::Anybody));
    assert_eq!(asked(bearer("wrong")), Ok(Who::Anybody));
    assert_eq!(asked(bearer("own")), Ok(Who::Anybody));
    assert_eq!(asked(Carried { key: Some("short"), ..NONE }), Ok(Who::Anybody));
    assert_eq!(asked(Carried { session: true, ..NONE }), Ok(Who::Session));
}

#[test]
fn token_is_replaced_and_only_short_secrets_are_guessable() {
    let long = "k".repeat(32);
    let mut access = Access::new(Some("own"), Some(&format!("{long},short")), Some("s"), None);
    let guessable = |access: &Access, text: &str| access.recognises(text).map(|identity| identity.guessable);
    assert_eq!(guessable(&access, "own"), Some(false));
    assert_eq!(guessable(&access, &long), Some(false));
    assert_eq!(guessable(&access, "short"), Some(true));
    assert_eq!(guessable(&access, "s"), Some(true));
    assert_eq!(guessable(&access, "wrong"), None);
    access.set_owner("new");
    assert_eq!(guessable(&access, "own"), None);
    assert_eq!(guessable(&access, "new"), Some(false));
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

/// A proxy may add the key to whatever a browser sends.
#[test]
fn change_for_a_foreign_page_is_refused_whatever_it_carries() {
    let access = Access::new(Some("own"), Some("k1"), Some("s"), None);
    let carriers = [
        (Peer::Elsewhere, key("k1")),
        (Peer::Elsewhere, bearer("s")),
        (Peer::Loopback, bearer("own")),
        (Peer::Socket, NONE),
    ];
    for (peer, carried) in carriers {
        let plain = Seen { changes: true, ..seen(peer, carried) };
        let own = Seen { origin: Some("https://127.0.0.1:4301"), fetch_site: Some("same-origin"), ..plain };
        for request in [plain, own] {
            assert!(access.decide(Need::Change, &request).is_ok(), "{request:?}");
        }
        for origin in ["https://evil.example", "null", "\u{0}", "http://127.0.0.1:80"] {
            let foreign = Seen { origin: Some(origin), ..plain };
            assert_eq!(access.decide(Need::Change, &foreign), Err(Denial::CrossSite), "{foreign:?}");
            let reads = Seen { changes: false, ..foreign };
            assert!(access.decide(Need::Read, &reads).is_ok(), "{reads:?}");
        }
        for site in ["cross-site", "same-site", "\u{0}"] {
            let foreign = Seen { fetch_site: Some(site), ..plain };
            assert_eq!(access.decide(Need::Control, &foreign), Err(Denial::CrossSite), "{foreign:?}");
        }
    }
    let wrong = Seen { changes: true, origin: Some("null"), ..seen(Peer::Elsewhere, key("k2")) };
    assert_eq!(access.decide(Need::Change, &wrong), Err(Denial::WrongKey));
}
