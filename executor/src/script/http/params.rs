//! What a job says about the request it wants, checked as far as that goes without a network.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use taskparty_common::duration;
use taskparty_nats::connect::Secret;

/// How long an answer may take, unless the job says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// What the connection itself sets.
const RESERVED: [&str; 8] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-authorization",
];

/// A request, ready to be sent once its host's address is known.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// The secrets in the headers, to be kept out of what is recorded.
    pub(super) secrets: Vec<Secret>,
    pub(super) body: Option<String>,
    pub(super) expected: Expected,
    pub(super) timeout: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    method: Option<String>,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
    body: Option<Box<RawValue>>,
    expected_status: Option<Value>,
    timeout: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FromEnv {
    from_env: String,
    /// What stands in front of it, such as `Bearer `.
    #[serde(default)]
    prefix: String,
}

impl Params {
    /// Reads them, with the `secrets` that headers may refer to. The error is for whoever wrote the
    /// job, and holds no secret.
    pub(super) fn read(
        json: &RawValue,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<Self, String> {
        let written: Written = serde_json::from_str(json.get()).map_err(|error| {
            format!(
                "the params cannot be used: {error}; write {{url: …, method: GET, headers: {{…}}, body: …}}"
            )
        })?;
        let method = written.method.unwrap_or_else(|| "GET".into());
        let url = read_url(&written.url)?;
        let mut params = Self {
            method: read_method(&method)?,
            url,
            headers: Vec::new(),
            secrets: Vec::new(),
            body: None,
            expected: written.expected_status.map_or(Ok(Expected::default()), Expected::read)?,
            timeout: written.timeout.map_or(Ok(DEFAULT_TIMEOUT), |text| {
                duration::parse(&text).map_err(|error| format!("timeout: {error}"))
            })?,
        };
        for (name, value) in written.headers {
            params.add_header(&name, value, secrets)?;
        }
        if let Some(body) = written.body {
            params.set_body(&body);
        }
        Ok(params)
    }

    fn add_header(
        &mut self,
        name: &str,
        value: Value,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<(), String> {
        let header: HeaderName =
            name.parse().map_err(|_| format!("headers: {name:?} is no name of a header"))?;
        if RESERVED.contains(&header.as_str()) {
            return Err(format!("headers: {name} is set by the connection"));
        }
        let (text, is_secret) = match value {
            Value::String(text) => (text, false),
            value => {
                let from: FromEnv = serde_json::from_value(value).map_err(|_| {
                    format!("headers: {name}: write a text, or {{from_env: NAME, prefix: TEXT}}")
                })?;
                let secret = secrets.get(&from.from_env).ok_or_else(|| {
                    format!(
                        "headers: {name}: this executor lets headers use no variable {}",
                        from.from_env
                    )
                })?;
                self.secrets.push(secret.clone());
                (format!("{}{}", from.prefix, secret.expose()), true)
            }
        };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| format!("headers: {name}: its value has characters that no header has"))?;
        value.set_sensitive(is_secret);
        self.headers.push((header, value));
        Ok(())
    }

    /// A JSON text is sent as that text, anything else as JSON.
    fn set_body(&mut self, body: &RawValue) {
        self.body = Some(match serde_json::from_str::<String>(body.get()) {
            Ok(text) => text,
            Err(_) => {
                self.add_default("content-type", "application/json");
                body.get().to_owned()
            }
        });
    }

    /// Adds a header, unless the job has it.
    pub(super) fn add_default(&mut self, name: &'static str, value: &str) {
        let name = HeaderName::from_static(name);
        if let Ok(value) = HeaderValue::from_str(value)
            && !self.headers.iter().any(|(known, _)| *known == name)
        {
            self.headers.push((name, value));
        }
    }
}

fn read_method(text: &str) -> Result<Method, String> {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let method = known.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(text));
    method.ok_or_else(|| format!("method: {text:?} is none; write GET, POST, PUT, PATCH, DELETE"))
}

fn read_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("url: {text:?}: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("url: {text:?} does not begin with http:// or https:// and a host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "url: keep the password out of it; use a header with {from_env: NAME}".to_owned()
        );
    }
    Ok(url)
}

/// The statuses that mean success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected(Vec<(u16, u16)>);

impl Default for Expected {
    fn default() -> Self {
        Self(vec![(200, 299)])
    }
}

impl Expected {
    /// `204`, `"2xx"`, or a list of them.
    fn read(value: Value) -> Result<Self, String> {
        let wrong = |value: &Value| {
            format!("expected_status: {value} is no status; write 200, \"2xx\", or a list of them")
        };
        let one = |value: &Value| -> Result<(u16, u16), String> {
            let text = match value {
                Value::Number(number) => number.to_string(),
                Value::String(text) => text.clone(),
                _ => return Err(wrong(value)),
            };
            let class = text.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
            match (class, text.parse::<u16>()) {
                (Some(class @ 1..=5), _) => Ok((class * 100, class * 100 + 99)),
                (_, Ok(status @ 100..=599)) => Ok((status, status)),
                _ => Err(wrong(value)),
            }
        };
        match &value {
            Value::Array(items) if items.is_empty() => Err(wrong(&value)),
            Value::Array(items) => items.iter().map(one).collect::<Result<_, _>>().map(Self),
            value => Ok(Self(vec![one(value)?])),
        }
    }

    pub(super) fn has(&self, status: StatusCode) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&status.as_u16()))
    }
}

/// Whether another attempt may get another status: the server is busy, or in trouble.
pub(super) fn may_change(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: Value) -> Result<Params, String> {
        let secrets = BTreeMap::from([("API_TOKEN".to_owned(), Secret::new("s3cret"))]);
        Params::read(&RawValue::from_string(json.to_string()).unwrap(), &secrets)
    }

    #[test]
    fn a_request_has_sensible_defaults() {
        let params = read(json!({"url": "https://example.com/x"})).unwrap();
        assert_eq!((params.method, params.timeout), (Method::GET, DEFAULT_TIMEOUT));
        assert!(params.headers.is_empty() && params.body.is_none());
        let params = read(json!({"url": "http://a", "method": "post", "body": {"a": 1}})).unwrap();
        assert_eq!(params.body.as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(params.headers[0].1, "application/json");
        let params = read(json!({"url": "http://a", "method": "POST", "body": "a=1"})).unwrap();
        assert_eq!((params.body.as_deref(), params.headers.len()), (Some("a=1"), 0));
    }

    #[test]
    fn a_secret_comes_by_reference_and_is_never_printed() {
        let header = json!({"from_env": "API_TOKEN", "prefix": "Bearer "});
        let params =
            read(json!({"url": "http://a", "headers": {"Authorization": header}})).unwrap();
        assert_eq!(params.headers[0].1, "Bearer s3cret");
        assert!(!format!("{params:?}").contains("s3cret"));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_field() {
        for (more, why) in [
            (json!({"url": "ftp://a"}), "url"),
            (json!({"url": "nothing"}), "url"),
            (json!({"url": "http://u:p@a"}), "password"),
            (json!({"method": "BREW"}), "method"),
            (json!({"headers": {"Host": "b"}}), "Host is set"),
            (json!({"headers": {"a b": "b"}}), "no name of a header"),
            (json!({"headers": {"a": "b\nc"}}), "no header has"),
            (json!({"headers": {"a": {"from_env": "HOME"}}}), "no variable HOME"),
            (json!({"headers": {"a": 1}}), "write a text"),
            (json!({"expected_status": "ok"}), "expected_status"),
            (json!({"expected_status": []}), "expected_status"),
            (json!({"timeout": "30"}), "timeout"),
            (json!({"verb": "GET"}), "unknown field `verb`"),
        ] {
            let mut params = json!({"url": "http://a"});
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let error = read(params).unwrap_err();
            assert!(error.contains(why), "{more}: {error}");
        }
    }

    #[test]
    fn expected_statuses_are_numbers_classes_and_lists() {
        let has = |expected: Value, status: u16| {
            Expected::read(expected).unwrap().has(StatusCode::from_u16(status).unwrap())
        };
        assert!(has(json!(204), 204) && !has(json!(204), 200));
        assert!(has(json!("3xx"), 302) && has(json!([200, "4xx"]), 404));
        assert!(!has(json!([200, "4xx"]), 201));
    }
}
