//! An answer on its way: it is counted, secrets that a host repeats do not pass, and at its end it is noted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use http::response::Parts;

use crate::answer::Refusal;
use crate::meter::{Admitted, Api, Reading, is_limit};
use crate::note::Note;
use crate::request::{Prepared, strip};
use crate::scrub::Scrub;
use crate::session::Session;

/// What is done with an answer while it passes.
pub(crate) struct Passing {
    reading: Option<Reading>,
    scrubs: Vec<Scrub>,
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
        // Of the model's server alone: another host's word is not about the model.
        if api.is_some() && is_limit(status, &parts.headers) {
            session.meter().note_limit();
        }
        let admitted = prepared.admitted;
        let scrubs: Vec<Scrub> = prepared.secrets.into_iter().map(Scrub::new).collect();
        scrubs.iter().for_each(|scrub| scrub.headers(&mut parts.headers));
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Self { reading: None, scrubs, note });
        }
        if !scrubs.is_empty() && is_packed(&parts.headers) {
            let refusal = Refusal::unreachable("the host packs its answer though it was asked not to");
            note.refused(&refusal);
            return Err(refusal);
        }
        strip(&mut parts.headers, false);
        Ok(Self {
            reading: api.map(|api| reading(session, api, status, &parts.headers, admitted)),
            scrubs,
            note,
        })
    }

    /// What may go on of a piece.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        self.note.counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
        if let Some(reading) = &mut self.reading {
            reading.read(&data);
        }
        self.scrubs.iter_mut().fold(data, |data, scrub| scrub.pass(data))
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn rest(&mut self) -> Bytes {
        let mut rest = Bytes::new();
        for scrub in &mut self.scrubs {
            let held = scrub.pass(rest);
            rest = [held, scrub.rest().unwrap_or_default()].concat().into();
        }
        rest
    }

    /// What may go on of what follows a body.
    pub(crate) fn pass_trailers(&self, trailers: &mut HeaderMap) {
        self.scrubs.iter().for_each(|scrub| scrub.headers(trailers));
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.scrubs.iter().all(Scrub::is_empty)
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

/// What reads an answer with such a head. An error costs nothing that it does not tell.
pub(crate) fn reading(
    session: &Session,
    api: Api,
    status: StatusCode,
    headers: &HeaderMap,
    admitted: Option<Arc<Admitted>>,
) -> Reading {
    let reading = Reading::new(api, Arc::clone(session.meter()), is_stream(headers), admitted);
    if status.is_success() { reading } else { reading.of_error() }
}

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn is_packed(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use http::HeaderMap;
    use http::header::HeaderValue;

    use ringfence_workspace::HostPrograms;

    use super::Passing;
    use crate::note::Note;
    use crate::providers::{Sources, find};
    use crate::request::{Prepared, Target, Watch};
    use crate::secret::Secret;
    use crate::session::idle_session;

    fn trailers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::header::ETAG, HeaderValue::try_from(value).unwrap())])
    }

    #[test]
    fn what_follows_a_body_is_looked_at_too() {
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
        let credentials = find(&["anthropic"], sources).unwrap();
        let placeholder = credentials[0].inside().env["ANTHROPIC_API_KEY"].clone();
        let session = idle_session(credentials);
        // On its way out: a placeholder that is not of this host.
        let stranger = Target::new(true, "host.test".parse().unwrap(), 443);
        assert!(Watch::new(&session, &stranger).is_stray_after(&trailers(&placeholder)));
        assert!(!Watch::new(&session, &stranger).is_stray_after(&trailers("other")));
        // On its way in: a secret.
        let mut prepared = Prepared::default();
        prepared.secrets.push(Secret::new("sk-ant-api03-real".into()));
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let note = Note::new(&session, &"host.test", 443, "tls");
        let passing = Passing::begin(&session, prepared, &mut parts, note).unwrap();
        let mut said = trailers("key sk-ant-api03-real");
        passing.pass_trailers(&mut said);
        assert_eq!(said[http::header::ETAG], "key *****************");
    }
}
