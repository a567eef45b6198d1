//! A model server that answers from a script, for tests that run the real agent CLIs.
//!
//! The room's front door: it only names what the other rooms offer. A test starts a
//! [`Server`] with a [`Script`], points a CLI at [`Server::url`] and afterwards reads
//! what the CLI sent from [`Server::requests`].
//!
//! ```
//! use scripted_model::{Script, Server, Step};
//!
//! # fn main() -> std::io::Result<()> {
//! let server = Server::start(Script::new(vec![
//!     Step::Write { path: "a.txt".into(), content: "hello\n".into() },
//!     Step::Text { text: "done".into() },
//! ]))?;
//! // ANTHROPIC_BASE_URL is the URL itself; OpenAI-like clients want `/v1` behind it.
//! let base = server.url();
//! assert!(base.starts_with("http://127.0.0.1:"));
//!
//! server.set_script(Script::new(vec![Step::fail(429)]));
//! assert!(server.requests().is_empty());
//! # Ok(())
//! # }
//! ```

mod anthropic;
mod chat;
mod dialect;
mod front;
mod responses;
mod script;
mod server;

pub use front::Front;
pub use script::{Script, ScriptError, Step, Usage};
pub use server::{Options, Recorded, Server};
