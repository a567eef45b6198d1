//! The broker: the only way out of a sandbox.
//!
//! A run reaches it through a door, a listener of its own, and speaks HTTP or SOCKS to it. For each wish the broker asks
//! the policy, resolves the name itself, dials exactly what was checked, and writes down what it did. Where a credential
//! belongs to a host, TLS is terminated with an authority of the run's own, and the placeholder that the run knows is
//! replaced by the real thing on the wire; anywhere else a placeholder stops the request.
//!
//! What must not be here: who may reach what (that is pure, in `core`), and which agent CLI needs which credential.

mod answer;
mod asking;
mod audit;
mod authentication;
mod authority;
mod broker;
mod credential;
mod daemon;
mod endpoints;
mod exchange;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod gateway_headers;
mod held_body;
mod hello;
mod http1;
mod known_secrets;
mod local;
mod login;
mod meter;
mod model_headers;
mod note;
mod passing;
mod placeholder;
mod post;
mod prefixed;
mod process_table;
pub mod processes;
mod providers;
mod relay;
mod request;
mod scrub;
mod secret;
mod session;
mod socks;
mod tunnel;
#[cfg(target_os = "linux")]
mod unix_diag;
mod upstream;

pub use asking::{Ask, Reply};
pub use audit::{Entry, Outcome, read_entries};
pub use authority::{Authority, AuthorityError};
pub use broker::{Broker, BrokerError};
pub use credential::{Credential, Inside};
pub use daemon::{Announcement, DaemonAddress, is_announced_by_this_user, is_of_this_machine};
pub use login::{Login, LoginError, LoginReport, LoginTool};
pub use meter::{Budget, Meter, Prices, PricesError};
pub use post::{PostError, Poster};
pub use providers::{ProviderError, Sources, find, named};
pub use ringfence_workspace::HostPrograms;
pub use secret::Secret;
pub use session::{Session, SessionError, Setup, is_system_bundle, system_bundle};
#[cfg(target_os = "linux")]
pub use unix_diag::peer_of_inode;
pub use upstream::{Answer, BadConnectTo, ConnectTo, Resolve, tls_config};
