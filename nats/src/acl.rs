//! The rights in NATS that each part needs, and no more.
//!
//! Made from the same names as everything else, so that they follow the prefix. The example
//! `nats/conf/accounts.conf` says the same in a file to copy; a test holds the two together.
//!
//! *Invariant: executors of one app see no work of another, and can make nothing.*

use serde::Serialize;
use taskparty_common::name::App;

use crate::subject::{Bucket, Names};

/// What one user of NATS may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rights {
    /// The user, as the example calls it.
    pub user: String,
    /// What its inboxes begin with: its own, so that nobody reads another's answers.
    pub inbox_prefix: String,
    /// Subjects that it may publish to.
    pub publish: Vec<String>,
    /// Subjects that it may subscribe to.
    pub subscribe: Vec<String>,
    /// It may answer whoever asks it: once each, within 30 s.
    pub allow_responses: bool,
}

impl Rights {
    /// Those of a node, with any of its roles.
    pub fn node(names: &Names) -> Self {
        let prefix = names.prefix();
        let mut publish = vec![format!("{prefix}.>")];
        publish.extend(Bucket::ALL.map(|bucket| names.key(bucket, ">")));
        let api = [
            "INFO",
            "STREAM.NAMES",
            "STREAM.INFO.*",
            "STREAM.CREATE.*",
            "STREAM.UPDATE.*",
            "STREAM.MSG.GET.*",
            "STREAM.MSG.DELETE.*",
            "DIRECT.GET.>",
            "CONSUMER.>",
        ];
        publish.extend(api.map(|call| format!("$JS.API.{call}")));
        publish.extend(["$JS.ACK.>".to_owned(), "$JS.FC.>".to_owned()]);
        let subscribe = vec![format!("{prefix}.>"), "$SRV.>".to_owned()];
        Self::new("scheduler", publish, subscribe)
    }

    /// Those of the executors of one app.
    pub fn executors(names: &Names, app: &App) -> Self {
        let stream = names.dispatch_stream(app);
        let prefix = names.prefix();
        let publish = vec![
            names.key(Bucket::Executors, &format!("{app}.*")),
            names.started(app),
            names.progress(app),
            names.result(app),
            format!("{prefix}.log.{app}.*"),
            "$JS.API.INFO".to_owned(),
            format!("$JS.API.STREAM.INFO.{}", names.bucket_stream(Bucket::Executors)),
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.CONSUMER.INFO.{stream}.*"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"),
            format!("$JS.ACK.{stream}.>"),
        ];
        let subscribe = vec![names.cancels(app), format!("{prefix}.probe.{app}.*")];
        Self::new(app.as_str(), publish, subscribe)
    }

    fn new(user: &str, publish: Vec<String>, subscribe: Vec<String>) -> Self {
        let inbox_prefix = format!("_INBOX_{user}");
        let subscribe = [vec![format!("{inbox_prefix}.>")], subscribe].concat();
        Self { user: user.to_owned(), inbox_prefix, publish, subscribe, allow_responses: true }
    }

    /// The variable of the server's environment that the user's password comes from.
    pub fn password_variable(&self) -> String {
        let user = self.user.to_ascii_uppercase().replace('-', "_");
        format!("TASKPARTY_{user}_PASSWORD")
    }

    /// An entry of `users` in the server's configuration.
    pub fn conf(&self) -> String {
        let list = |subjects: &[String]| {
            let lines = subjects.iter().map(|subject| format!("        {subject:?}\n"));
            lines.collect::<String>()
        };
        let responses = if self.allow_responses {
            "    allow_responses: { max: 1, expires: \"30s\" }\n"
        } else {
            ""
        };
        format!(
            "{{\n  user: {:?}\n  password: ${}\n  permissions {{\n    publish {{\n      allow: [\n{}      ]\n    }}\n    \
             subscribe {{\n      allow: [\n{}      ]\n    }}\n{responses}  }}\n}}\n",
            self.user,
            self.password_variable(),
            list(&self.publish),
            list(&self.subscribe),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const EXAMPLE: &str = include_str!("../conf/accounts.conf");

    /// The subjects in the example's entry of `user`.
    fn example(user: &str) -> BTreeSet<&'static str> {
        let entry = EXAMPLE.split("user: ").find(|entry| entry.starts_with(user)).unwrap();
        let entry = entry.split("allow_responses").next().unwrap();
        // The texts in quotes.
        entry.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_example_gives_the_same_rights() {
        let names = Names::default();
        for rights in
            [Rights::node(&names), Rights::executors(&names, &App::new("order-service").unwrap())]
        {
            let ours: BTreeSet<&str> =
                rights.publish.iter().chain(&rights.subscribe).map(String::as_str).collect();
            assert_eq!(ours, example(&rights.user), "{}", rights.user);
            assert!(EXAMPLE.contains(&format!("password: ${}\n", rights.password_variable())));
        }
    }
}
