//! Somebody who triggers jobs by hand all the time, now and for later, and writes down what was
//! promised. *Invariant: the same seed asks for the same, in the same order.*

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskparty_executor::{Client, ClientError};
use taskparty_lab::site::Site;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::load::{ON_DEMAND, on_demand};

/// How often somebody triggers something.
const EVERY: Duration = Duration::from_millis(250);

/// What was promised.
#[derive(Debug, Default)]
pub struct Promised {
    /// The runs that were promised, with the key that they were asked for by.
    pub runs: BTreeMap<Uuid, String>,
    /// Requests that nobody answered: they may have been taken.
    pub unanswered: u64,
    /// What is wrong already: a key that gave two runs, a refusal.
    pub wrong: Vec<String>,
}

/// Triggers until `stop`, what `seed` says.
pub async fn run(site: Arc<Site>, seed: u64, stop: CancellationToken) -> Promised {
    let mut chance = StdRng::seed_from_u64(seed);
    let client = Client::new(site.nats.clone());
    let mut promised = Promised::default();
    let mut keys: BTreeMap<(usize, u64), Uuid> = BTreeMap::new();
    let mut number = 0_u64;
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        // Each fifth time a key that was there before, of a while ago or of just now.
        let again = number > 20 && number.is_multiple_of(5);
        let key = if again { number - chance.random_range(1..20) } else { number };
        // A key belongs to a job.
        let job = usize::try_from(key).unwrap_or_default() % ON_DEMAND;
        number += 1;
        let name = format!("key-{key}");
        let asked = client.trigger(&on_demand(job)).key(&name).deadline(Duration::from_secs(20));
        // The same key asks for the same time each time.
        let asked = match key % 3 {
            0 => asked.after(Duration::from_millis(500 + key % 7 * 1_000)),
            _ => asked,
        };
        match asked.send().await {
            Ok(run) => {
                let first = *keys.entry((job, key)).or_insert(run);
                if first != run {
                    promised.wrong.push(format!("{name} gave {first} and {run}"));
                }
                promised.runs.insert(run, format!("{}/{name}", on_demand(job)));
            }
            Err(ClientError::NoAnswer { .. }) => promised.unanswered += 1,
            // Not a failure of what was promised, and worth a look.
            Err(error) => {
                site.journal.say(format!("{name}: {error}"));
                promised.unanswered += 1;
            }
        }
    }
    promised
}
