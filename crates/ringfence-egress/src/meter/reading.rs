//! The usage in the answers of the three APIs, whole or as they stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::dates::without_date;
use super::limit::{is_limit_error, mentions_limit};
use super::scanner::Scanner;
use super::{Admitted, Meter, Used};

/// A longer line is not kept whole, but scanned as it comes.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Longer names of models are cut.
pub(super) const LONGEST_NAME: usize = 100;

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

/// Reads one answer as it comes. Whatever its length, little of it is kept.
pub(crate) struct Reading {
    api: Api,
    meter: Arc<Meter>,
    text: Text,
    streams: bool,
    /// What this answer has used so far, and what of it was counted.
    used: Used,
    counted: Used,
    told: Told,
    /// The choices of a stream of chat completions that have come to their end.
    finished: BTreeSet<u64>,
    /// The request, if the run has a budget: it counts as its most unless the answer tells.
    admitted: Option<Arc<Admitted>>,
    /// Whether no work was begun for the request, which costs nothing that the answer does not tell.
    not_started: bool,
    /// Whether the request was without the credential of the model.
    of_other_account: bool,
}

/// Which halves of its usage an answer has told to the end, in whole numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    input: bool,
    output: bool,
    /// Whether the answer has come to its end, where its usage may be told before.
    ended: bool,
}

/// What has come and is not understood yet.
enum Text {
    /// Of one document.
    Whole(Scanner),
    /// Of a stream: the beginning of a line.
    Line(Vec<u8>),
    /// Of a stream: a line that is long.
    LongLine(Scanner),
}

/// Whatever becomes of the answer, it counts.
impl Drop for Reading {
    fn drop(&mut self) {
        self.end();
    }
}

impl Reading {
    pub(crate) fn new(api: Api, meter: Arc<Meter>, streams: bool, admitted: Option<Arc<Admitted>>) -> Self {
        let text = if streams { Text::Line(Vec::new()) } else { Text::Whole(Scanner::default()) };
        let (used, counted) = (Used::default(), Used::default());
        let (told, finished) = (Told::default(), BTreeSet::new());
        let (not_started, of_other_account) = (false, false);
        Self {
            api,
            meter,
            text,
            streams,
            used,
            counted,
            told,
            finished,
            admitted,
            not_started,
            of_other_account,
        }
    }

    /// Reads an answer to a request without the credential of the model: its limits are not those of the user's account.
    pub(crate) fn of_other_account(mut self) -> Self {
        self.of_other_account = true;
        self
    }

    /// Reads an answer whose status says that no work was begun. Its request is on its way until it is read: a server may tell usage
    /// in it.
    pub(crate) fn of_request_not_started(mut self) -> Self {
        self.not_started = true;
        self
    }

    /// Some more of it.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        if let Text::Whole(scanner) = &mut self.text {
            return scanner.feed(bytes);
        }
        // What has no end of a line yet waits; lines that are whole are read where they are.
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            self.begin_of_line(line);
            match std::mem::replace(&mut self.text, Text::Line(Vec::new())) {
                Text::Line(line) => self.line(&line),
                Text::LongLine(scanner) | Text::Whole(scanner) => self.document(&scanner.finish()),
            }
        }
        if !rest.is_empty() {
            self.begin_of_line(rest);
        }
    }

    /// A part of a line.
    fn begin_of_line(&mut self, bytes: &[u8]) {
        match &mut self.text {
            Text::Whole(scanner) | Text::LongLine(scanner) => scanner.feed(bytes),
            Text::Line(line) if line.len() + bytes.len() <= MAX_LINE_BYTES => line.extend_from_slice(bytes),
            Text::Line(line) => {
                line.extend_from_slice(bytes);
                let mut scanner = Scanner::default();
                // A line of another kind than data has no document, and finds none.
                scanner.feed(line.strip_prefix(b"data:").unwrap_or_default());
                self.text = Text::LongLine(scanner);
            }
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        self.told.ended |= data.trim_ascii() == b"[DONE]";
        // Most of a stream says nothing of it, and need not be understood.
        let finishes = self.api == Api::Chat && mentions_finish(data);
        if (finishes || memchr::memmem::find(data, b"\"usage\"").is_some() || mentions_limit(data))
            && let Ok(document) = serde_json::from_slice(data)
        {
            self.document(&document);
        }
    }

    /// All of it has come, or all that will. What it has not told counts as the most that was asked for.
    pub(crate) fn end(&mut self) {
        match std::mem::replace(&mut self.text, Text::Line(Vec::new())) {
            Text::Whole(scanner) => self.document(&scanner.finish()),
            Text::LongLine(scanner) => self.document(&scanner.finish()),
            Text::Line(line) => self.line(&line),
        }
        let Some(admitted) = self.admitted.take() else { return };
        admitted.settle();
        if self.not_started {
            return;
        }
        // A half that was not told to its end counts as its most. One that has told what it read, and broke off, has told that much.
        let most = admitted.demand.used();
        let Told { input, output, ended } = self.told;
        let rest = Used {
            input: if input { 0 } else { most.input.saturating_sub(self.used.input) },
            cache_write: if input { 0 } else { most.cache_write.saturating_sub(self.used.input) },
            output: if output && ended { 0 } else { most.output.saturating_sub(self.used.output) },
            ..most
        };
        if rest.input > 0 || rest.cache_write > 0 || rest.output > 0 {
            self.meter.add(&rest);
        }
    }

    fn document(&mut self, document: &Value) {
        if !self.of_other_account && is_limit_error(document) {
            self.meter.note_limit();
        }
        let kind = document["type"].as_str();
        let within = match (self.api, kind) {
            (Api::Messages, Some("message_start")) => &document["message"],
            (Api::Responses, Some(_)) => &document["response"],
            _ => document,
        };
        if let Some(model) = within["model"].as_str() {
            self.used.model = model.chars().take(LONGEST_NAME).collect();
        }
        if let Some(admitted) = &self.admitted {
            // The provider's name for the release that it has behind the name that was asked for, at the price of that.
            if without_date(&self.used.model, '-') == Some(&admitted.demand.model)
                && !self.meter.lists(&self.used.model)
            {
                self.used.model.clone_from(&admitted.demand.model);
            }
            if self.used.model.is_empty() {
                self.used.model.clone_from(&admitted.demand.model);
            }
            // This answer counts at the highest price that is known, and no other follows.
            if !self.meter.knows(&self.used.model) {
                self.meter.note_unpriced_answer(&self.used.model);
            }
        }
        let usage = &within["usage"];
        self.usage(usage);
        self.note_told(kind, within, usage);
        let new = self.used.since(&self.counted);
        self.counted = self.used.clone();
        if new != (Used { model: new.model.clone(), ..Used::default() }) {
            self.meter.add(&new);
        }
    }

    /// Notes which halves of the usage are told. Numbers in an early event of a stream are not the last, and nothing reads no token.
    fn note_told(&mut self, kind: Option<&str>, within: &Value, usage: &Value) {
        let number = |name: &str| usage[name].is_u64();
        let reads = self.used.input > 0 || self.used.cache_read > 0 || self.used.cache_write > 0;
        let (input, output, ended) = match self.api {
            Api::Messages => {
                let last = kind != Some("message_start") && number("output_tokens");
                (number("input_tokens"), last, last)
            }
            Api::Responses => {
                let last = match kind {
                    Some(kind) => {
                        ["response.completed", "response.incomplete", "response.failed"].contains(&kind)
                    }
                    None => {
                        !["queued", "in_progress"].contains(&within["status"].as_str().unwrap_or_default())
                    }
                };
                (last && number("input_tokens"), last && number("output_tokens"), last)
            }
            Api::Chat => {
                let told = number("prompt_tokens") || number("completion_tokens");
                let last = !self.streams || self.all_choices_finished(within);
                (number("prompt_tokens"), number("completion_tokens"), told && last)
            }
        };
        self.told.input |= input && reads;
        self.told.output |= output;
        self.told.ended |= ended;
    }

    /// Whether every choice that was asked for has ended, in this event of a stream or before: until then more may be written than
    /// an event tells.
    fn all_choices_finished(&mut self, event: &Value) -> bool {
        let wanted =
            self.admitted.as_ref().map_or(0, |admitted| admitted.demand.more_choices).saturating_add(1);
        let choices = event["choices"].as_array().map_or(&[][..], Vec::as_slice);
        let ended = choices.iter().filter(|choice| choice["finish_reason"].is_string());
        let indexes = ended.map(|choice| choice["index"].as_u64().unwrap_or(0));
        self.finished.extend(indexes.filter(|index| *index < wanted));
        self.finished.len() as u64 >= wanted
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
        // Some servers leave what a model thinks out of what it writes, and count it in the sum alone.
        if let Some(total) = number("/total_tokens").filter(|_| self.api != Api::Messages) {
            let read = used.input.saturating_add(used.cache_read);
            set(&mut used.output, Some(total.saturating_sub(read)));
        }
    }
}

/// Whether an event of a stream has a choice with a reason for its end. In most it is null.
fn mentions_finish(data: &[u8]) -> bool {
    const NAME: &[u8] = b"\"finish_reason\"";
    memchr::memmem::find_iter(data, NAME).any(|at| {
        let value = data[at + NAME.len()..].trim_ascii_start().strip_prefix(b":").unwrap_or_default();
        value.trim_ascii_start().starts_with(b"\"")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::{Budget, Demand, Meter, Prices};
    use super::{Api, Reading};

    fn meter(budget: Budget) -> Arc<Meter> {
        Arc::new(Meter::new(Prices::built_in().unwrap(), budget))
    }

    fn read(api: Api, streams: bool, text: &str) -> (u64, u64, u64, Option<f64>) {
        let meter = meter(Budget::default());
        let mut reading = Reading::new(api, Arc::clone(&meter), streams, None);
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
            let mut reading = Reading::new(Api::Chat, Arc::clone(&meter), false, None);
            reading.read(b"{\"model\":\"m\",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}");
            reading.end();
        }
        assert!(meter.is_over());
        assert_eq!(alarms.load(Ordering::Relaxed), 1);
    }

    async fn charged(api: Api, streams: bool, text: &str) -> (u64, u64) {
        charged_of(api, streams, text, 1).await
    }

    /// What is counted of an answer to a request for so many choices.
    async fn charged_of(api: Api, streams: bool, text: &str, choices: u64) -> (u64, u64) {
        let meter = meter(Budget { tokens: Some(1_000_000), cost_usd: None });
        let demand = Demand {
            model: "m".into(),
            input_tokens: 500,
            output_tokens: 100,
            more_choices: choices - 1,
            ..Demand::default()
        };
        let admitted = meter.admit(demand).await;
        let mut reading = Reading::new(api, Arc::clone(&meter), streams, admitted);
        text.as_bytes().chunks(1000).for_each(|piece| reading.read(piece));
        reading.end();
        let total = meter.total();
        (total.input_tokens, total.output_tokens)
    }

    /// Another request may be sent once the usage in it is known, and not before.
    #[tokio::test]
    async fn answer_with_an_error_holds_its_place_until_it_is_read() {
        let meter = meter(Budget { tokens: Some(1000), cost_usd: None });
        let demand = || Demand { model: "m".into(), input_tokens: 900, ..Demand::default() };
        let admitted = meter.admit(demand()).await;
        let mut reading =
            Reading::new(Api::Chat, Arc::clone(&meter), false, admitted).of_request_not_started();
        let second = || tokio::time::timeout(std::time::Duration::from_millis(50), meter.admit(demand()));
        assert!(second().await.is_err(), "the first is not read");
        reading.read(b"{\"error\":{},\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}");
        drop(reading);
        assert!(second().await.unwrap().is_some());
        assert_eq!(meter.total().input_tokens, 7, "an error costs what it tells");
    }

    #[tokio::test]
    async fn answer_of_a_model_without_a_price_counts_at_the_highest_price() {
        let meter = meter(Budget { tokens: None, cost_usd: Some(100.0) });
        for (model, cost, unpriced) in
            [("gpt-5-2025-08-07", 10.0, None), ("gpt-5-ultra", 10.0 + 120.0, Some("gpt-5-ultra"))]
        {
            let admitted = meter.admit(Demand { model: "gpt-5".into(), ..Demand::default() }).await;
            let mut reading = Reading::new(Api::Chat, Arc::clone(&meter), false, admitted);
            let usage = "\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":1000000}";
            reading.read(format!("{{\"model\":\"{model}\",{usage}}}").as_bytes());
            reading.end();
            assert!((meter.total().cost_usd.unwrap() - cost).abs() < 1e-9, "{model}");
            assert_eq!(meter.unpriced_answer(), unpriced);
        }
        assert!(meter.is_over());
    }

    /// A stream tells what was used so far with each event, and ends one choice after another.
    #[tokio::test]
    async fn stream_of_several_choices_ends_with_the_last_of_them() {
        let event = |index: u64, completion: u64| {
            format!(
                "data: {{\"choices\":[{{\"index\":{index},\"finish_reason\":\"stop\"}}],\
                 \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{completion}}}}}\n\n"
            )
        };
        let (first, second) = (event(0, 5), event(1, 12));
        for (text, choices, counted) in [
            (first.clone(), 1, (7, 5)),
            (first.clone(), 2, (7, 100)),
            (format!("{first}{first}"), 2, (7, 100)),
            (format!("{first}{second}"), 2, (7, 12)),
            (format!("{second}{first}"), 2, (7, 12)),
            (format!("{first}{second}"), 3, (7, 100)),
            (format!("{first}{}", event(9, 12)), 2, (7, 100)),
            (format!("{first}data: [DONE]\n\n"), 2, (7, 5)),
        ] {
            assert_eq!(charged_of(Api::Chat, true, &text, choices).await, counted, "{choices} {text}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_does_not_tell_its_usage_counts_as_its_most() {
        let start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
        let end = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\n";
        let padding = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(5 << 20));
        let usage = "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}";
        let event = |kind: &str, usage: &str| {
            format!("data: {{\"type\":\"response.{kind}\",\"response\":{{\"usage\":{{{usage}}}}}}}\n\n")
        };
        let created = event("created", "\"input_tokens\":0,\"output_tokens\":0");
        let completed = event("completed", "\"input_tokens\":30,\"output_tokens\":5");
        let early = "data: {\"choices\":[{\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1}}\n\n"
            .to_owned();
        let logprobs = format!("\"logprobs\":\"{}\"", "l".repeat(5 << 20));
        let finish = "data: {\"choices\":[{\"index\":0,\"finish_reason\": \"stop\"}]}\n\n";
        for (api, streams, text, counted) in [
            (Api::Chat, true, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n".to_owned(), (500, 100)),
            (Api::Chat, false, "{\"choices\":[]}".to_owned(), (500, 100)),
            (Api::Responses, false, "{\"status\":\"queued\",\"usage\":null}".to_owned(), (500, 100)),
            (Api::Messages, true, start.to_owned(), (9, 100)),
            (Api::Messages, true, format!("{start}{end}"), (9, 7)),
            (Api::Messages, true, format!("{start}{padding}{end}"), (9, 7)),
            (Api::Chat, false, format!("{{{logprobs},{usage}}}"), (2, 3)),
            (Api::Chat, true, format!("data: {{{logprobs},{usage}}}\n\ndata: [DONE]\n\n"), (2, 3)),
            (Api::Chat, true, format!("{finish}data: {{{logprobs},{usage}}}"), (2, 3)),
            (Api::Chat, true, format!("data: {{\"choices\":[],{usage}}}\n\n"), (2, 100)),
            (Api::Chat, false, format!("{{{logprobs}"), (500, 100)),
            (Api::Chat, false, "{\"usage\":{\"prompt_tokens\":9}}".to_owned(), (9, 100)),
            (Api::Chat, false, "{\"usage\":{\"completion_tokens\":9}}".to_owned(), (500, 9)),
            (Api::Responses, false, "{\"usage\":{\"output_tokens\":9}}".to_owned(), (500, 9)),
            (
                Api::Messages,
                false,
                "{\"usage\":{\"input_tokens\":9.0,\"output_tokens\":9}}".to_owned(),
                (500, 9),
            ),
            (
                Api::Messages,
                false,
                "{\"usage\":{\"input_tokens\":0,\"output_tokens\":9}}".to_owned(),
                (500, 9),
            ),
            (Api::Responses, true, created.clone(), (500, 100)),
            (Api::Responses, true, format!("{created}{completed}"), (30, 5)),
            (Api::Chat, true, early.clone(), (7, 100)),
            (Api::Chat, true, format!("{early}data: [DONE]\n\n"), (7, 1)),
            (
                Api::Chat,
                false,
                "{\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":25,\"total_tokens\":1000}}"
                    .to_owned(),
                (50, 950),
            ),
        ] {
            assert_eq!(charged(api, streams, &text).await, counted, "{api:?} {streams} {text:.60}");
        }
    }
}
