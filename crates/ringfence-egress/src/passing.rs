//! An answer on its way: it is counted, secrets that a host repeats do not pass, and at its end it is noted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, SET_COOKIE, TRANSFER_ENCODING};
use http::response::Parts;

use crate::answer::Refusal;
use crate::known_secrets::HostSecrets;
use crate::meter::{Admitted, Api, Meter, Reading, is_limit};
use crate::note::Note;
use crate::request::{Prepared, strip};
use crate::scrub::Scrub;
use crate::session::Session;

/// What is done with an answer while it passes.
pub(crate) struct Passing {
    reading: Option<Reading>,
    /// For the secrets that belong to the host.
    scrub: Scrub,
    /// Where there may be more of them.
    secrets: HostSecrets,
    /// Whether the request had a credential: a session that the host opens for it is not for the run.
    hides_cookies: bool,
    note: Note,
}

impl Passing {
    /// The answer to a request begins: its head is made what the run may read. One that cannot be looked into is refused.
    pub(crate) fn begin(
        session: &Session,
        prepared: Prepared,
        parts: &mut Parts,
        mut note: Note,
    ) -> Result<Self, Refusal> {
        note.status = Some(parts.status.as_u16());
        let (api, status) = (prepared.api, parts.status);
        // Of the model's server and the user's account alone: other limits are not the task's.
        if api.is_some() && prepared.model_credential && is_limit(status, &parts.headers) {
            session.meter().note_limit();
        }
        let admitted = prepared.admitted;
        let mut secrets = prepared.secrets;
        let scrub = Scrub::new(secrets.new_ones().chain(prepared.encoded));
        let hides_cookies = !prepared.swapped.is_empty();
        scrub.headers(&mut parts.headers);
        if hides_cookies {
            remove_cookies(&mut parts.headers);
        }
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Self { reading: None, scrub, secrets, hides_cookies, note });
        }
        if prepared.looked_into && is_packed(&parts.headers) {
            let refusal = Refusal::unreachable("the host packs its answer though it was asked not to");
            note.refused(&refusal);
            return Err(refusal);
        }
        // Of what the encodings of a transfer hide, nothing would be seen, and nothing would tell of them further on.
        if is_encoded_on_the_way(&parts.headers) {
            let refusal = Refusal::unreachable("the host answers with a transfer coding other than chunked");
            note.refused(&refusal);
            return Err(refusal);
        }
        strip(&mut parts.headers, false);
        Ok(Self {
            reading: api.map(|api| {
                let reading = reading(session, api, status, &parts.headers, admitted);
                if prepared.model_credential { reading } else { reading.of_other_account() }
            }),
            scrub,
            secrets,
            hides_cookies,
            note,
        })
    }

    /// What may go on of a piece.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        self.note.counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
        if let Some(reading) = &mut self.reading {
            reading.read(&data);
        }
        self.scrub.add(self.secrets.new_ones());
        self.scrub.pass(data)
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.scrub.rest()
    }

    /// What may go on of what follows a body.
    pub(crate) fn pass_trailers(&self, trailers: &mut HeaderMap) {
        self.scrub.headers(trailers);
        if self.hides_cookies {
            remove_cookies(trailers);
        }
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.scrub.is_empty()
    }

    /// What reads it, if it has to be read to its end by somebody else.
    pub(crate) fn take_reading(&mut self) -> Option<Reading> {
        self.reading.take()
    }

    /// It ends because of what the run says.
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.note.refused(refusal);
    }

    /// Its note, when it is an answer no longer.
    pub(crate) fn note(&self) -> &Note {
        &self.note
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(mut reading) = self.reading.take() {
            reading.end();
        }
    }
}

fn remove_cookies(headers: &mut HeaderMap) {
    headers.remove(SET_COOKIE);
    headers.remove("set-cookie2");
}

/// What reads an answer with such a head. One whose status says that no work was begun costs nothing that it does not tell.
pub(crate) fn reading(
    session: &Session,
    api: Api,
    status: StatusCode,
    headers: &HeaderMap,
    admitted: Option<Arc<Admitted>>,
) -> Reading {
    reading_into(session.meter(), api, status, headers, admitted)
}

fn reading_into(
    meter: &Arc<Meter>,
    api: Api,
    status: StatusCode,
    headers: &HeaderMap,
    admitted: Option<Arc<Admitted>>,
) -> Reading {
    let reading = Reading::new(api, Arc::clone(meter), is_stream(headers), admitted);
    let is_free = is_not_started(status) || (claims_not_started(status) && meter.forgives_refusal());
    if is_free { reading.of_request_not_started() } else { reading }
}

/// Whether a status says that the server has not begun to work. All others do not: a timeout of something in between, say, is no word of
/// the model's server.
fn is_not_started(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301..=303 | 307 | 308 | 401..=405 | 409 | 413 | 415 | 429 | 529)
}

/// Whether a status says so usually. Some gateways answer with it when the server has ended the connection, and some servers when what the
/// model wrote is of no use.
fn claims_not_started(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 422 | 503)
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn is_packed(headers: &HeaderMap) -> bool {
    let is_identity = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    !headers.get_all(CONTENT_ENCODING).iter().all(is_identity)
}

fn is_encoded_on_the_way(headers: &HeaderMap) -> bool {
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    !headers.get_all(TRANSFER_ENCODING).iter().all(is_chunked)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::header::HeaderValue;
    use http::{HeaderMap, StatusCode};

    use ringfence_workspace::HostPrograms;

    use super::{Passing, reading_into};
    use crate::meter::{Api, Budget, Demand, MAX_UNPROVEN_REFUSALS, Meter, Prices};
    use crate::note::Note;
    use crate::providers::{Sources, find};
    use crate::request::{Prepared, Target, Watch};
    use crate::secret::Secret;
    use crate::session::{Session, idle_session};

    fn trailers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::header::ETAG, HeaderValue::try_from(value).unwrap())])
    }

    /// A session with a key that belongs to one host.
    fn session_with_key() -> Arc<Session> {
        let env = BTreeMap::from([("ANTHROPIC_API_KEY".to_owned(), "sk-ant-api03-real".to_owned())]);
        let nowhere = Path::new("/nonexistent");
        let sources = Sources {
            env: &env,
            moved: &[],
            home: nowhere,
            state: nowhere,
            programs: &HostPrograms::none(),
            keychain: None,
            base_url: None,
            login_gateways: &[],
        };
        idle_session(find(&["anthropic"], sources).unwrap())
    }

    /// Of an answer of this host.
    fn prepared(session: &Session, host: &str) -> Prepared {
        let host = host.parse().unwrap();
        let mut prepared = Prepared::default();
        (prepared.looked_into, prepared.secrets) =
            (session.looks_into(&host, 8443), session.secrets_at(&host));
        prepared
    }

    #[test]
    fn what_follows_a_body_is_looked_at_too() {
        let session = session_with_key();
        let placeholder = session.credentials[0].inside().env["ANTHROPIC_API_KEY"].clone();
        // On its way out: a placeholder that is not of this host.
        let stranger = Target::new(true, "host.test".parse().unwrap(), 443);
        assert!(Watch::new(&session, &stranger).is_stray_after(&trailers(&placeholder)));
        assert!(!Watch::new(&session, &stranger).is_stray_after(&trailers("other")));
        // On its way in: a secret, though this session has not sent it.
        let prepared = prepared(&session, "api.anthropic.com");
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let note = Note::new(&session, &"host.test", 443, "tls");
        let passing = Passing::begin(&session, prepared, &mut parts, note).unwrap();
        let mut said = trailers("key sk-ant-api03-real");
        passing.pass_trailers(&mut said);
        assert_eq!(said[http::header::ETAG], "key *****************");
    }

    /// A session of the host would be for all of its paths.
    #[test]
    fn cookies_do_not_reach_a_run_that_used_a_credential() {
        for (swapped, expected) in [(vec![http::header::AUTHORIZATION], 0), (Vec::new(), 2)] {
            let session = idle_session(Vec::new());
            let mut prepared = Prepared::default();
            (prepared.looked_into, prepared.swapped) = (true, swapped);
            let (mut parts, ()) = http::Response::new(()).into_parts();
            parts.headers.append("set-cookie", HeaderValue::from_static("session=1"));
            parts.headers.append("set-cookie2", HeaderValue::from_static("session=1"));
            let mut trailers = parts.headers.clone();
            let note = Note::new(&session, &"host.test", 443, "tls");
            let passing = Passing::begin(&session, prepared, &mut parts, note).unwrap();
            passing.pass_trailers(&mut trailers);
            assert_eq!((parts.headers.len(), trailers.len()), (expected, expected));
        }
    }

    #[test]
    fn secret_that_is_sent_while_an_answer_is_under_way_does_not_pass_in_it() {
        let session = session_with_key();
        let begin = |looked_into, headers: &[(&'static str, &'static str)]| {
            let prepared = prepared(&session, if looked_into { "api.anthropic.com" } else { "other.test" });
            let (mut parts, ()) = http::Response::new(()).into_parts();
            for (name, value) in headers {
                parts.headers.append(*name, HeaderValue::from_static(value));
            }
            let note = Note::new(&session, &"host.test", 443, "tls");
            Passing::begin(&session, prepared, &mut parts, note)
        };
        for encoding in ["gzip", "br", "zstd", "deflate", "identity, gzip"] {
            assert!(begin(true, &[("content-encoding", encoding)]).is_err(), "{encoding}");
        }
        assert!(begin(false, &[("content-encoding", "gzip")]).is_ok(), "of another host");
        let mut before = begin(true, &[]).ok().unwrap();
        assert_eq!(before.pass(Bytes::from_static(b"sk-real ")), "sk-real ");
        let new = [Secret::new("sk-real".into()), Secret::new("sk-real".into())];
        session.secrets.of_credential(0).unwrap().add(&new);
        assert_eq!(before.pass(Bytes::from_static(b"sk-real ")), "******* ");
        let mut after = begin(true, &[]).ok().unwrap();
        assert_eq!(after.pass(Bytes::from_static(b"a sk-real ")), "a ******* ");
        let mut elsewhere = begin(false, &[]).ok().unwrap();
        assert_eq!(elsewhere.pass(Bytes::from_static(b"sk-real")), "sk-real");
        let packed = [("content-encoding", "identity"), ("content-encoding", "gzip")];
        assert!(begin(true, &packed).is_err(), "the second header counts too");
        assert!(begin(true, &packed[..1]).is_ok());
        for looked_into in [true, false] {
            for coding in ["gzip, chunked", "gzip", "chunked, gzip", "identity", ""] {
                assert!(begin(looked_into, &[("transfer-encoding", coding)]).is_err(), "{coding}");
            }
            let two = [("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")];
            assert!(begin(looked_into, &two).is_err());
            assert!(begin(looked_into, &two[1..]).is_ok());
        }
    }

    /// Something between the broker and the model may give up while the model works.
    #[tokio::test]
    async fn answer_that_does_not_say_that_nothing_was_begun_counts_at_its_most() {
        let counted = async |status: u16, body: &'static [u8]| {
            let demand = Demand { model: "m".into(), input_tokens: 900, ..Demand::default() };
            let meter =
                Meter::new(Prices::built_in().unwrap(), Budget { tokens: Some(1000), cost_usd: None });
            let meter = Arc::new(meter);
            let admitted = meter.admit(demand).await;
            let status = StatusCode::from_u16(status).unwrap();
            let mut reading = reading_into(&meter, Api::Chat, status, &HeaderMap::new(), admitted);
            reading.read(body);
            drop(reading);
            meter.total().input_tokens
        };
        for status in [200, 304, 408, 499, 500, 502, 504, 520, 522, 524] {
            assert_eq!(counted(status, b"error").await, 900, "{status}");
        }
        for status in [301, 307, 400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 503, 529] {
            assert_eq!(counted(status, b"error").await, 0, "{status}");
        }
        let meter = Arc::new(Meter::new(
            Prices::built_in().unwrap(),
            Budget { tokens: Some(1 << 40), cost_usd: None },
        ));
        for status in [400, 422, 503].into_iter().cycle().take(MAX_UNPROVEN_REFUSALS + 2) {
            let demand = Demand { model: "m".into(), input_tokens: 900, ..Demand::default() };
            let admitted = meter.admit(demand).await;
            let status = StatusCode::from_u16(status).unwrap();
            let mut reading = reading_into(&meter, Api::Chat, status, &HeaderMap::new(), admitted);
            reading.read(b"error");
        }
        assert_eq!(meter.total().input_tokens, 2 * 900, "a run cannot have such answers without end");
        let told = b"{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":0}}";
        assert_eq!(counted(502, told).await, 7);
    }
}
