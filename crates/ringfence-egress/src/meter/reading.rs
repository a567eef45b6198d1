//! The usage in the answers of the three APIs, whole or as they stream.

use std::sync::Arc;

use serde_json::Value;

use super::limit::{is_limit_error, mentions_limit};
use super::{Meter, Used};

/// A longer line, or a longer answer in one piece, is not read.
const LONGEST: usize = 4 << 20;

/// Longer names of models are cut.
const LONGEST_NAME: usize = 100;

/// Whose words an answer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Messages,
    Responses,
    Chat,
}

impl Api {
    /// By the path of the request, as it is meant.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let ends = |end| path.trim_end_matches('/').ends_with(end);
        match () {
            () if ends("/messages") => Some(Api::Messages),
            () if ends("/responses") => Some(Api::Responses),
            () if ends("/chat/completions") => Some(Api::Chat),
            () => None,
        }
    }
}

/// Reads one answer as it comes.
pub(crate) struct Reading {
    api: Api,
    meter: Arc<Meter>,
    streams: bool,
    buffer: Vec<u8>,
    /// What this answer has used so far, and what of it was counted.
    used: Used,
    counted: Used,
}

impl Reading {
    pub(crate) fn new(api: Api, meter: Arc<Meter>, streams: bool) -> Self {
        Self { api, meter, streams, buffer: Vec::new(), used: Used::default(), counted: Used::default() }
    }

    /// Some more of it.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > LONGEST {
            self.buffer.clear();
            return;
        }
        if !self.streams {
            self.buffer.extend_from_slice(bytes);
            return;
        }
        // What has no end of a line yet waits; lines that are whole are read where they are.
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            if self.buffer.is_empty() {
                self.line(line);
            } else {
                self.buffer.extend_from_slice(line);
                let line = std::mem::take(&mut self.buffer);
                self.line(&line);
            }
        }
        self.buffer.extend_from_slice(rest);
    }

    fn line(&mut self, line: &[u8]) {
        if let Some(data) = line.strip_prefix(b"data:") {
            self.document(data);
        }
    }

    /// All of it has come.
    pub(crate) fn end(&mut self) {
        let rest = std::mem::take(&mut self.buffer);
        if !self.streams {
            self.document(&rest);
        }
    }

    fn document(&mut self, bytes: &[u8]) {
        // Most of a stream says nothing of it, and need not be understood.
        if memchr::memmem::find(bytes, b"\"usage\"").is_none() && !mentions_limit(bytes) {
            return;
        }
        let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
        if is_limit_error(&document) {
            self.meter.note_limit();
        }
        let within = match (self.api, document["type"].as_str()) {
            (Api::Messages, Some("message_start")) => &document["message"],
            (Api::Responses, Some(_)) => &document["response"],
            _ => &document,
        };
        if let Some(model) = within["model"].as_str() {
            self.used.model = model.chars().take(LONGEST_NAME).collect();
        }
        self.usage(&within["usage"]);
        let new = self.used.since(&self.counted);
        self.counted = self.used.clone();
        if new != (Used { model: new.model.clone(), ..Used::default() }) {
            self.meter.add(&new);
        }
    }

    /// Numbers are of the whole answer so far; one that is not told again stays as it was.
    fn usage(&mut self, usage: &Value) {
        let number = |path: &str| usage.pointer(path).and_then(Value::as_u64);
        let set = |place: &mut u64, value: Option<u64>| *place = value.unwrap_or(*place).max(*place);
        let used = &mut self.used;
        match self.api {
            Api::Messages => {
                set(&mut used.input, number("/input_tokens"));
                set(&mut used.output, number("/output_tokens"));
                set(&mut used.cache_read, number("/cache_read_input_tokens"));
                set(&mut used.cache_write, number("/cache_creation_input_tokens"));
            }
            Api::Responses => {
                let cached = number("/input_tokens_details/cached_tokens");
                set(&mut used.cache_read, cached);
                set(
                    &mut used.input,
                    number("/input_tokens").map(|all| all.saturating_sub(cached.unwrap_or(0))),
                );
                set(&mut used.output, number("/output_tokens"));
            }
            Api::Chat => {
                let cached = number("/prompt_tokens_details/cached_tokens");
                set(&mut used.cache_read, cached);
                set(
                    &mut used.input,
                    number("/prompt_tokens").map(|all| all.saturating_sub(cached.unwrap_or(0))),
                );
                set(&mut used.output, number("/completion_tokens"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::{Budget, Meter, Prices};
    use super::{Api, Reading};

    fn meter(budget: Budget) -> Arc<Meter> {
        Arc::new(Meter::new(Prices::built_in().unwrap(), budget))
    }

    fn read(api: Api, streams: bool, text: &str) -> (u64, u64, u64, Option<f64>) {
        let meter = meter(Budget::default());
        let mut reading = Reading::new(api, Arc::clone(&meter), streams);
        // Byte by byte: pieces may end anywhere.
        text.as_bytes().chunks(1).for_each(|byte| reading.read(byte));
        reading.end();
        let total = meter.total();
        (total.input_tokens, total.output_tokens, total.cached_tokens, total.cost_usd)
    }

    #[test]
    fn all_three_apis_are_read_whole_and_as_they_stream() {
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude-sonnet-4-5\",\
             \"usage\":{\"input_tokens\":1000,\"output_tokens\":1,\"cache_read_input_tokens\":500}}}\n\n\
             data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"usage\"}}\n\n\
             data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":100}}\n\n";
        let cost = 0.003 + 0.0015 + 0.00015;
        let (input, output, cached, known) = read(Api::Messages, true, messages);
        assert_eq!((input, output, cached), (1000, 100, 500));
        assert!((known.unwrap() - cost).abs() < 1e-9);
        let responses = "data: {\"type\":\"response.created\",\"response\":{\"model\":\"m\",\"usage\":null}}\n\n\
             data: {\"type\":\"response.completed\",\"response\":{\"model\":\"m\",\"usage\":{\"input_tokens\":30,\
             \"input_tokens_details\":{\"cached_tokens\":10},\"output_tokens\":5}}}\n\n";
        assert_eq!(read(Api::Responses, true, responses), (20, 5, 10, None));
        let chat = "data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
        assert_eq!(read(Api::Chat, true, chat), (7, 3, 0, None));
        let whole =
            "{\"type\":\"message\",\"model\":\"m\",\"usage\":{\"input_tokens\":4,\"output_tokens\":2}}";
        assert_eq!(read(Api::Messages, false, whole), (4, 2, 0, None));
        let whole =
            "{\"object\":\"response\",\"model\":\"m\",\"usage\":{\"input_tokens\":4,\"output_tokens\":2}}";
        assert_eq!(read(Api::Responses, false, whole), (4, 2, 0, None));
    }

    #[test]
    fn nonsense_counts_as_nothing() {
        assert_eq!(
            read(Api::Chat, true, "data: {\"usage\"\n\ndata: {\"usage\":{\"prompt_tokens\":-1}}\n"),
            (0, 0, 0, None)
        );
    }

    #[test]
    fn the_alarm_is_raised_once() {
        let meter = meter(Budget { tokens: Some(10), cost_usd: None });
        let alarms = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&alarms);
        meter.on_over(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..3 {
            let mut reading = Reading::new(Api::Chat, Arc::clone(&meter), false);
            reading.read(b"{\"model\":\"m\",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}");
            reading.end();
        }
        assert!(meter.is_over());
        assert_eq!(alarms.load(Ordering::Relaxed), 1);
    }
}
