//! The logins that are known: where their tokens stand in the document, and how they are refreshed.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Placeholders, Tokens};
use crate::audit::now_ms;
use crate::placeholder::Placeholder;
use crate::secret::Secret;

/// One kind of login.
pub(crate) struct Kind {
    /// The name of its lock and its journal.
    pub(crate) name: &'static str,
    /// Who refreshes it.
    pub(crate) host: &'static str,
    /// At which path.
    pub(crate) path: &'static str,
    /// Its tokens in a document.
    pub(crate) tokens: fn(&Value) -> Option<Tokens>,
    /// The plan of the person, if it is told.
    pub(crate) plan: fn(&Value) -> Option<String>,
    /// What is sent to refresh it.
    pub(crate) request: fn(&Value, &str) -> Value,
    /// Puts the provider's answer into the document; all else stays.
    pub(crate) update: fn(&mut Value, &Value),
    /// What a run knows in the place of its tokens.
    pub(crate) placeholders: fn(&Value) -> io::Result<Placeholders>,
    /// The document that a run finds.
    pub(crate) copy: fn(&Value, &Placeholders) -> Value,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Inside, a login never runs out: the host is the one that refreshes it. In seconds since the epoch.
const NEVER: u64 = 4_102_444_800;

/// The login of a Claude subscription.
pub(crate) const CLAUDE: Kind = Kind {
    name: "claude",
    host: "platform.claude.com",
    path: "/v1/oauth/token",
    tokens: |document| {
        let login = document.get(CLAUDE_ROOM)?;
        Some(Tokens {
            access: secret(login, "accessToken")?,
            refresh: secret(login, "refreshToken"),
            expires_at_ms: login.get("expiresAt").and_then(Value::as_u64),
        })
    },
    plan: |document| Some(document.get(CLAUDE_ROOM)?.get("subscriptionType")?.as_str()?.to_owned()),
    request: |document, refresh| {
        let scopes = document.pointer("/claudeAiOauth/scopes").and_then(Value::as_array);
        let scopes: Vec<&str> = scopes.into_iter().flatten().filter_map(Value::as_str).collect();
        json!({
            "grant_type": "refresh_token",
            "refresh_token": refresh,
            "client_id": "9d1c250a-e61b-44d9-88ed-5944d1962f5e",
            "scope": scopes.join(" "),
        })
    },
    update: |document, answer| {
        let login = &mut document[CLAUDE_ROOM];
        login["accessToken"] = answer["access_token"].clone();
        if answer["refresh_token"].is_string() {
            login["refreshToken"] = answer["refresh_token"].clone();
        }
        if let Some(seconds) = answer["expires_in"].as_u64() {
            login["expiresAt"] = Value::from(now_ms().saturating_add(seconds.saturating_mul(1000)));
        }
    },
    placeholders: |_| {
        Ok(Placeholders {
            access: Placeholder::new("sk-ant-oat01-")?,
            refresh: Placeholder::new("sk-ant-ort01-")?,
            id: None,
        })
    },
    copy: |document, inside| {
        // Only what is known to be no secret.
        let mut login = only(&document[CLAUDE_ROOM], &["scopes", "subscriptionType", "rateLimitTier"]);
        login["accessToken"] = Value::from(inside.access.text());
        login["refreshToken"] = Value::from(inside.refresh.text());
        login["expiresAt"] = Value::from(NEVER * 1000);
        json!({ CLAUDE_ROOM: login })
    },
};

const CLAUDE_ROOM: &str = "claudeAiOauth";

/// The login of a ChatGPT plan.
pub(crate) const CHATGPT: Kind = Kind {
    name: "chatgpt",
    host: "auth.openai.com",
    path: "/oauth/token",
    tokens: |document| {
        let tokens = document.get("tokens")?;
        let access = secret(tokens, "access_token")?;
        let expires = claims(access.reveal()).and_then(|claims| claims.get("exp")?.as_u64());
        Some(Tokens {
            refresh: secret(tokens, "refresh_token"),
            expires_at_ms: expires.map(|seconds| seconds.saturating_mul(1000)),
            access,
        })
    },
    plan: |document| {
        let claims = claims(document.pointer("/tokens/id_token")?.as_str()?)?;
        Some(claims.get("https://api.openai.com/auth")?.get("chatgpt_plan_type")?.as_str()?.to_owned())
    },
    request: |_, refresh| {
        json!({
            "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
            "grant_type": "refresh_token",
            "refresh_token": refresh,
            "scope": "openid profile email",
        })
    },
    update: |document, answer| {
        for name in ["access_token", "refresh_token", "id_token"] {
            if answer[name].is_string() {
                document["tokens"][name] = answer[name].clone();
            }
        }
        document["last_refresh"] = Value::from(jiff::Timestamp::now().to_string());
    },
    placeholders: |document| {
        let claims_of = |name| {
            let token = document["tokens"][name].as_str();
            token.and_then(claims).unwrap_or_else(|| json!({}))
        };
        let mut access = claims_of("access_token");
        access["exp"] = Value::from(NEVER);
        Ok(Placeholders {
            access: Placeholder::token(&access)?,
            refresh: Placeholder::new("rt_")?,
            id: Some(Placeholder::token(&claims_of("id_token"))?),
        })
    },
    copy: |document, inside| {
        let mut tokens = only(&document["tokens"], &["account_id"]);
        tokens["access_token"] = Value::from(inside.access.text());
        tokens["refresh_token"] = Value::from(inside.refresh.text());
        tokens["id_token"] = Value::from(inside.id.as_ref().map(Placeholder::text));
        json!({
            "auth_mode": document.get("auth_mode").cloned().unwrap_or_else(|| "chatgpt".into()),
            "OPENAI_API_KEY": null,
            "tokens": tokens,
            // Whoever has just refreshed does not refresh.
            "last_refresh": jiff::Timestamp::now().to_string(),
        })
    },
};

/// Some fields of an object.
fn only(document: &Value, names: &[&str]) -> Value {
    let fields = names.iter().filter_map(|name| Some(((*name).to_owned(), document.get(name)?.clone())));
    Value::Object(fields.collect())
}

fn secret(document: &Value, name: &str) -> Option<Secret> {
    let text = document.get(name)?.as_str().filter(|text| !text.is_empty())?;
    Some(Secret::new(text.to_owned()))
}

/// What a token says of itself. It is no secret: only the signature makes it worth something.
fn claims(token: &str) -> Option<Value> {
    let body = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
}
