//! History, as the API may show it: only from the store into which this installation's log writer
//! writes.
//!
//! *Invariant: no request is answered from another store.* A node with a file of its own would say
//! "no runs", and nobody could tell that from the truth. Which store it is stands in NATS, and may
//! be said only after the node has started; so it is looked at for each request.

use taskparty_nats::bucket::Buckets;

use super::ApiError;
use super::problem::Problem;
use crate::log_writer::{StoreClaim, store_claim};
use crate::store::Store;

/// The store, behind the question whose it is.
#[derive(Debug)]
pub struct History {
    buckets: Buckets,
    store: Store,
}

impl History {
    /// Makes sure that `store` is not another one than the log writer's. No log writer may have
    /// been here yet.
    ///
    /// # Errors
    /// [`ApiError::OtherStore`], or NATS could not be asked.
    pub async fn open(buckets: Buckets, store: Store) -> Result<Self, ApiError> {
        let history = Self { buckets, store };
        match store_claim(&history.buckets, history.store.id()).await? {
            StoreClaim::Nobody | StoreClaim::Ours => Ok(history),
            StoreClaim::Other(found) => Err(ApiError::OtherStore(history.other(&found))),
        }
    }

    /// The store, when what it holds is this installation's history.
    pub(super) async fn store(&self) -> Result<&Store, Problem> {
        match store_claim(&self.buckets, self.store.id()).await {
            Ok(StoreClaim::Nobody | StoreClaim::Ours) => Ok(&self.store),
            Ok(StoreClaim::Other(found)) => Err(Problem::unavailable(self.other(&found))),
            Err(error) => Err(Problem::unavailable(format!(
                "it cannot be found out which store holds the history: {error}"
            ))),
        }
    }

    fn other(&self, found: &str) -> String {
        format!(
            "the history of this installation is in another store ({found}) than {} ({}); start \
             the node that has the role api where the log writer's file is, with the same --store-url",
            self.store.path().display(),
            self.store.id()
        )
    }
}
