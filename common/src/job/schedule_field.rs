//! The `schedule:` block of a job, read and written.

use serde_json::{Map, Value, json};

use super::read::{Fields, string};
use crate::duration::format;
use crate::schedule::{Fold, Gap, Schedule, ScheduleSpec};

const GAPS: [(&str, Gap); 2] = [("shift", Gap::Shift), ("skip", Gap::Skip)];
const FOLDS: [(&str, Fold); 4] =
    [("auto", Fold::Auto), ("first", Fold::First), ("last", Fold::Last), ("both", Fold::Both)];

/// Reads the block; nothing when there is none, or when it is wrong and the errors say so.
pub(super) fn read(fields: &mut Fields<'_>) -> Option<Schedule> {
    let mut inner = fields.object("schedule")?;
    let cron = inner.read("cron", read_cron);
    let fixed_rate = inner.duration("fixed_rate");
    let fixed_delay = inner.duration("fixed_delay");
    let at = inner.text("at", 100);
    let spec = ScheduleSpec {
        timezone: inner.text("timezone", 100),
        from: inner.text("from", 100),
        until: inner.text("until", 100),
        spread: inner.duration("spread").unwrap_or_default(),
        gap: inner.choice("gap", &GAPS).unwrap_or_default(),
        fold: inner.choice("fold", &FOLDS).unwrap_or_default(),
        cron: cron.unwrap_or_default(),
        fixed_rate,
        fixed_delay,
        at,
    };
    // A timing that could not be read has its error already; "none given" would be a second one.
    let unreadable = ["cron", "fixed_rate", "fixed_delay", "at"]
        .into_iter()
        .filter(|field| inner.raw(field).is_some())
        .count()
        > usize::from(!spec.cron.is_empty())
            + usize::from(spec.fixed_rate.is_some())
            + usize::from(spec.fixed_delay.is_some())
            + usize::from(spec.at.is_some());
    let schedule = match Schedule::new(&spec) {
        Ok(schedule) => Some(schedule),
        Err(errors) => {
            for error in errors.iter().filter(|error| !(unreadable && error.field().is_empty())) {
                inner.fail(&error.field(), error.reason().to_string());
            }
            None
        }
    };
    inner.finish();
    schedule
}

fn read_cron(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(items) if items.is_empty() => Err("the list is empty".into()),
        Value::Array(items) => items.iter().map(|item| string(item).map(str::to_owned)).collect(),
        _ => Ok(vec![string(value)?.to_owned()]),
    }
}

/// Writes the block.
pub(super) fn write(schedule: &Schedule) -> Value {
    let spec = schedule.to_spec();
    let mut map = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            map.insert(field.into(), value);
        }
    };
    put(
        "cron",
        match spec.cron.as_slice() {
            [] => None,
            [only] => Some(json!(only)),
            list => Some(json!(list)),
        },
    );
    put("fixed_rate", spec.fixed_rate.map(|period| json!(format(period))));
    put("fixed_delay", spec.fixed_delay.map(|pause| json!(format(pause))));
    put("at", spec.at.map(Value::from));
    put("timezone", spec.timezone.map(Value::from));
    put("from", spec.from.map(Value::from));
    put("until", spec.until.map(Value::from));
    put("spread", (!spec.spread.is_zero()).then(|| json!(format(spec.spread))));
    put("gap", (spec.gap != Gap::default()).then(|| json!(spec.gap)));
    put("fold", (spec.fold != Fold::default()).then(|| json!(spec.fold)));
    Value::Object(map)
}
