//! YAML that any reader reads back as it was meant.

use serde::Serialize;

use crate::failure::Failure;

/// `data` as YAML.
pub(super) fn write<T: Serialize>(data: &T) -> Result<String, Failure> {
    let broken = |error: String| Failure::could_not(format!("cannot write YAML: {error}"));
    // By way of a JSON value, so that all three formats hold the same.
    let value = serde_json::to_value(data).map_err(|error| broken(error.to_string()))?;
    serde_saphyr::to_string(&value).map_err(|error| broken(error.to_string()))
}
