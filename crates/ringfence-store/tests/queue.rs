//! What the queue promises, whatever keeps it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_core::event::{RunResult, RunStatus, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{RetryRule, Role, State, StepError, TaskEvent, TaskSpec, TaskStatus};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{
    Change, Claim, DeliveryState, Filter, NewTask, Now, Store, StoreError, Task, TaskPolicy, Tasks,
};
use serde_json::{Value, json};

/// Seconds, in a world that began long ago.
fn at(seconds: u64) -> Now {
    Now { ms: 1_000_000_000_000 + seconds * 1000 }
}

fn rules() -> TaskPolicy {
    TaskPolicy { retry: RetryRule::DEFAULT, webhook: None }
}

static NAMES: AtomicU64 = AtomicU64::new(0);

fn new_run() -> Option<RunId> {
    format!("r{}", NAMES.fetch_add(1, Ordering::Relaxed)).parse().ok()
}

fn claim_as(store: &dyn Store, owner: &str, roles: &[Role], most: usize, bound: u32, now: Now) -> Vec<Task> {
    let claim = Claim {
        owner,
        roles,
        max_tasks: most,
        max_concurrency: bound,
        until: now.seconds() + 60,
        accepts: &|_| true,
        new_run_id: &new_run,
    };
    store.claim(&claim, now).unwrap()
}

fn claim(store: &dyn Store, most: usize, now: Now) -> Vec<String> {
    claim_as(store, "d", &Role::ALL, most, 0, now).into_iter().map(|task| task.spec.prompt).collect()
}

fn change(store: &dyn Store, task: &TaskId, event: TaskEvent, now: Now) -> Result<Task, StoreError> {
    let changed = store
        .change(&Change { task, event, rules: &rules(), jitter: 0, result: None, workspace: None }, now)?;
    Ok(changed.task)
}

const WORKSPACE: DirectoryId = DirectoryId { device: 1, inode: 2 };

fn task(prompt: &str, lane: &str) -> NewTask {
    NewTask { spec: TaskSpec::new(prompt), lane: lane.to_owned(), workspace: WORKSPACE }
}

fn add(store: &dyn Store, new: NewTask) -> TaskId {
    store.add(&[new], at(0)).unwrap().remove(0).task
}

fn with(prompt: &str, lane: &str, change: impl FnOnce(&mut TaskSpec)) -> NewTask {
    let mut new = task(prompt, lane);
    change(&mut new.spec);
    new
}

fn check(test: impl FnOnce(&dyn Store)) {
    let dir = tempfile::tempdir().unwrap();
    test(&Sqlite::open(dir.path()).unwrap());
}

const USED: Usage = Usage { input_tokens: 7, output_tokens: 3, cached_tokens: 0, cost_usd: Some(0.5) };

fn failed_result(task: &Task, failure: &Failure) -> RunResult {
    let State::Running { run, .. } = &task.lifecycle.state else { panic!("{task:?}") };
    RunResult {
        run: run.clone(),
        status: RunStatus::Failed,
        exit_code: 1,
        text: "what it said".into(),
        attachments: Vec::new(),
        session: None,
        usage: USED,
        session_usage: None,
        metered: BTreeMap::new(),
        duration_ms: 5,
        leftover_processes: 0,
        surviving_processes: 0,
        git_refs: Vec::new(),
        executed_later: Vec::new(),
        failure: Some(failure.clone()),
    }
}

fn failed(fence: u64, class: FailureClass) -> TaskEvent {
    TaskEvent::Failed { fence, failure: Failure::new(class, "x") }
}

#[test]
fn tasks_of_one_lane_are_done_one_after_another_and_lanes_side_by_side() {
    check(|store| {
        let first = add(store, task("a1", "a"));
        add(store, task("a2", "a"));
        add(store, task("b1", "b"));
        assert_eq!(claim(store, 9, at(1)), ["a1", "b1"]);
        assert!(claim(store, 9, at(1)).is_empty());
        change(store, &first, TaskEvent::Succeeded { fence: 1 }, at(2)).unwrap();
        assert_eq!(claim(store, 9, at(2)), ["a2"]);
    });
}

#[test]
fn priority_goes_first_then_the_lane_that_waited_longest_then_age() {
    check(|store| {
        for lane in ["a", "b", "c"] {
            for number in 1..=2 {
                add(store, task(&format!("{lane}{number}"), lane));
            }
        }
        add(store, with("urgent", "c", |spec| spec.priority = 5));
        let mut order = Vec::new();
        for _ in 0..7 {
            let taken = claim_as(store, "d", &Role::ALL, 1, 1, at(1)).remove(0);
            assert!(claim(store, 0, at(1)).is_empty());
            change(store, &taken.id, TaskEvent::Succeeded { fence: 1 }, at(1)).unwrap();
            order.push(taken.spec.prompt);
        }
        assert_eq!(order, ["urgent", "a1", "b1", "c1", "a2", "b2", "c2"]);
    });
}

#[test]
fn the_bound_holds_over_all_who_claim() {
    check(|store| {
        for number in 0..10 {
            add(store, task("x", &format!("lane{number}")));
        }
        assert_eq!(claim_as(store, "one", &Role::ALL, 9, 3, at(1)).len(), 3);
        assert_eq!(claim_as(store, "two", &Role::ALL, 9, 3, at(1)).len(), 0);
        assert_eq!(claim_as(store, "two", &Role::ALL, 9, 4, at(1)).len(), 1);
    });
}

#[test]
fn roles_get_their_own_tasks() {
    check(|store| {
        add(store, with("test it", "a", |spec| spec.role = Role::Tester));
        assert!(claim_as(store, "d", &[Role::Worker, Role::Docser], 9, 0, at(1)).is_empty());
        assert_eq!(claim_as(store, "d", &[Role::Tester], 9, 0, at(1)).len(), 1);
    });
}

#[test]
fn a_task_waits_for_those_before_it_and_falls_with_them() {
    check(|store| {
        let first = add(store, task("first", "a"));
        let after = vec![first.clone()];
        let second = add(store, with("second", "b", |spec| spec.after = after));
        let after = vec![second.clone()];
        let third = add(store, with("third", "c", |spec| spec.after = after));
        assert_eq!(claim(store, 9, at(1)), ["first"]);
        assert_eq!(store.task(&second).unwrap().waits_for, std::slice::from_ref(&first));
        change(store, &first, TaskEvent::Succeeded { fence: 1 }, at(1)).unwrap();
        assert_eq!(claim(store, 9, at(1)), ["second"]);
        change(store, &second, failed(1, FailureClass::AuthRequired), at(1)).unwrap();
        let forsaken = store.task(&third).unwrap();
        assert_eq!(forsaken.lifecycle.state.name(), TaskStatus::Dead);
        assert!(forsaken.lifecycle.failures[0].message.contains(&format!("task {second}")));
        let error = store.add(&[with("fourth", "d", |spec| spec.after = vec![second.clone()])], at(1));
        assert!(matches!(error, Err(StoreError::DependencyEnded { .. })), "{error:?}");
        assert!(matches!(
            change(store, &third, TaskEvent::Retry, at(2)),
            Err(StoreError::DependencyEnded { .. })
        ));
        change(store, &second, TaskEvent::Retry, at(2)).unwrap();
        change(store, &third, TaskEvent::Retry, at(2)).unwrap();
        assert_eq!(claim(store, 9, at(3)), ["second"]);
    });
}

#[test]
fn what_waits_for_nothing_that_is_there_is_not_accepted_and_nothing_of_the_batch_is() {
    check(|store| {
        let ghost: TaskId = "77".parse().unwrap();
        let batch = [task("good", "a"), with("bad", "a", |spec| spec.after = vec![ghost])];
        assert!(matches!(store.add(&batch, at(0)), Err(StoreError::NoSuchDependency(_))));
        let batch = [task("good", "a"), task("", "a")];
        assert!(matches!(store.add(&batch, at(0)), Err(StoreError::Spec(_))));
        assert_eq!(store.counts().unwrap()[&TaskStatus::Queued], 0);
        assert_eq!(store.last_event().unwrap(), 0);
    });
}

#[test]
fn a_key_makes_two_tasks_one() {
    check(|store| {
        let keyed = || with("x", "a", |spec| spec.key = Some("k".into()));
        let one = store.add(&[keyed()], at(0)).unwrap().remove(0);
        let two = store.add(&[keyed()], at(5)).unwrap().remove(0);
        assert_eq!((one.task.clone(), one.existed, two.existed), (two.task, false, true));
        let other = with("y", "a", |spec| spec.key = Some("k".into()));
        assert!(
            matches!(store.add(&[other], at(0)), Err(StoreError::KeyTaken { task, .. }) if task == one.task)
        );
    });
}

#[test]
fn a_delayed_task_lets_others_pass_and_a_retry_keeps_its_place() {
    check(|store| {
        let later = at(100).seconds();
        add(store, with("later", "a", |spec| spec.not_before = Some(later)));
        let flaky = add(store, task("flaky", "a"));
        add(store, task("next", "a"));
        assert_eq!(store.next_due().unwrap(), Some(later));
        assert_eq!(claim(store, 9, at(1)), ["flaky"]);
        change(store, &flaky, failed(1, FailureClass::Network), at(1)).unwrap();
        assert!(claim(store, 9, at(2)).is_empty(), "the others of its lane wait for it");
        assert_eq!(store.next_due().unwrap(), Some(at(11).seconds()));
        assert_eq!(claim(store, 9, at(11)), ["flaky"]);
        change(store, &flaky, TaskEvent::Succeeded { fence: 2 }, at(12)).unwrap();
        assert_eq!(claim(store, 9, at(12)), ["next"]);
        change(store, &"3".parse().unwrap(), TaskEvent::Succeeded { fence: 1 }, at(13)).unwrap();
        assert_eq!(claim(store, 9, at(100)), ["later"]);
    });
}

#[test]
fn a_quota_blocks_the_lane_until_the_provider_lets_go() {
    check(|store| {
        let id = add(store, task("x", "a"));
        claim(store, 1, at(1));
        let failure = Failure::new(FailureClass::Quota, "come back")
            .with_retry_after(ringfence_core::units::Seconds::new(3600));
        let blocked = change(store, &id, TaskEvent::Failed { fence: 1, failure }, at(1)).unwrap();
        assert_eq!(blocked.lifecycle.state.name(), TaskStatus::Blocked);
        assert!(claim(store, 1, at(3600)).is_empty());
        assert_eq!(claim(store, 1, at(3601)), ["x"]);
    });
}

#[test]
fn who_was_given_up_is_not_heard() {
    check(|store| {
        let id = add(store, task("x", "a"));
        claim(store, 1, at(1));
        change(store, &id, TaskEvent::RunnerLost { fence: 1 }, at(2)).unwrap();
        claim(store, 1, at(20));
        for late in [TaskEvent::Succeeded { fence: 1 }, failed(1, FailureClass::Unknown)] {
            let error = change(store, &id, late, at(4)).unwrap_err();
            assert!(matches!(
                error,
                StoreError::Step { error: StepError::Fenced { given: 1, newest: 2 }, .. }
            ));
        }
        change(store, &id, TaskEvent::Succeeded { fence: 2 }, at(5)).unwrap();
        let attempts = store.runs_of_task(&id).unwrap();
        assert_eq!(attempts.len(), 2);
        assert!(attempts.iter().all(|attempt| attempt.ended_ms.is_some()));
    });
}

#[test]
fn an_end_is_kept_with_its_result_its_letter_its_events_and_its_webhook() {
    check(|store| {
        let id = add(store, with("x", "a", |spec| spec.webhook = Some("http://127.0.0.1:1/".into())));
        let taken = claim_as(store, "d", &Role::ALL, 1, 0, at(1)).remove(0);
        let failure = Failure::new(FailureClass::AuthRequired, "log in").with_remedy("do it");
        let result = failed_result(&taken, &failure);
        let event = TaskEvent::Failed { fence: 1, failure };
        let everybody = TaskPolicy { webhook: Some("http://127.0.0.1:2/".into()), ..rules() };
        let dead = store
            .change(
                &Change {
                    task: &id,
                    event,
                    rules: &everybody,
                    jitter: 0,
                    result: Some(&result),
                    workspace: None,
                },
                at(2),
            )
            .unwrap()
            .task;
        assert_eq!((dead.lifecycle.state.name(), dead.result), (TaskStatus::Dead, Some(result)));
        let letter = store.dead_letter(&id).unwrap();
        assert_eq!((letter.failure.class, letter.runs[0].usage), (FailureClass::AuthRequired, USED));
        let kinds: Vec<String> =
            store.events_after(0, 99).unwrap().into_iter().map(|entry| entry.event.kind).collect();
        assert_eq!(kinds, ["task.added", "task.leased", "task.failed", "task.dead"]);
        let waiting = store.deliveries(DeliveryState::Waiting).unwrap();
        assert_eq!(waiting.len(), 2);
        assert!(waiting[0].body.contains("\"task.dead\"") && waiting[0].body.contains("log in"));
        let next = store.next_deliveries(9).unwrap().remove(0);
        store.record_attempt(next.id, DeliveryState::Delivered, 0, None, at(3)).unwrap();
        assert_ne!(store.next_deliveries(9).unwrap()[0].id, next.id);
        for round in 1..=3 {
            change(store, &id, TaskEvent::Retry, at(4)).unwrap();
            assert!(store.dead_letters(None, 9).unwrap().is_empty());
            claim(store, 1, at(4));
            change(store, &id, failed(1 + round, FailureClass::AuthRequired), at(4)).unwrap();
        }
        assert_eq!(store.dead_letter(&id).unwrap().task.lifecycle.failures.len(), 4, "history is kept");
        let error = change(store, &id, TaskEvent::Retry, at(5)).unwrap_err();
        assert!(matches!(error, StoreError::Step { error: StepError::TooOften { times: 3 }, .. }));
        store.discard(&id).unwrap();
        assert!(matches!(store.discard(&id), Err(StoreError::NoDeadLetter(_))));
    });
}

#[test]
fn cancelling_takes_a_task_out_of_every_state_but_the_last() {
    check(|store| {
        let id = add(store, task("x", "a"));
        claim(store, 1, at(1));
        change(store, &id, TaskEvent::Cancel, at(2)).unwrap();
        assert!(change(store, &id, TaskEvent::Succeeded { fence: 1 }, at(3)).is_err());
        assert!(change(store, &id, TaskEvent::Cancel, at(3)).is_err());
        assert!(store.leases().unwrap().is_empty());
        let y = add(store, task("y", "a"));
        assert!(claim(store, 1, at(4)).is_empty(), "something of its run may be left");
        let (task, run) = store.pending_cleanup().unwrap().remove(0);
        change(store, &id, TaskEvent::Retry, at(4)).unwrap();
        assert!(claim(store, 1, at(4)).is_empty(), "nor is it tried again before that");
        store.cleanup_done(&task, &run, at(5)).unwrap();
        assert_eq!(
            (claim(store, 1, at(5)), store.pending_cleanup().unwrap().len()),
            (vec!["x".to_owned()], 0)
        );
        change(store, &id, TaskEvent::Succeeded { fence: 3 }, at(5)).unwrap();
        assert_eq!(claim(store, 1, at(5)), ["y"]);
        change(store, &y, TaskEvent::Succeeded { fence: 1 }, at(5)).unwrap();
    });
}

#[test]
fn lists_are_filtered_and_turned_page_by_page() {
    check(|store| {
        for number in 0..25 {
            add(
                store,
                with("x", "a", |spec| spec.agent = Some(if number % 2 == 0 { "even" } else { "odd" }.into())),
            );
        }
        let mut filter = Filter { limit: 10, ..Filter::default() };
        let mut seen = Vec::new();
        loop {
            let page = store.tasks(&filter).unwrap();
            let Some(last) = page.last() else { break };
            filter.before = Some(last.id.clone());
            seen.extend(page.into_iter().map(|task| task.id.as_str().parse::<u64>().unwrap()));
        }
        assert_eq!(seen, (1..=25).rev().collect::<Vec<_>>());
        let odd = Filter { agent: Some("odd".into()), limit: 99, ..Filter::default() };
        assert_eq!(store.tasks(&odd).unwrap().len(), 12);
        let done = Filter { states: vec![TaskStatus::Done], limit: 99, ..Filter::default() };
        assert!(store.tasks(&done).unwrap().is_empty());
    });
}

#[test]
fn settings_of_the_running_system_are_kept_and_their_changes_told() {
    check(|store| {
        let set = |value: Option<Value>, time| {
            store.set_system_config(&[("sandbox.mode".into(), value)], at(time)).unwrap();
        };
        set(Some(json!("host")), 1);
        set(Some(json!("docker")), 2);
        assert_eq!(store.system_config().unwrap(), [("sandbox.mode".to_owned(), json!("docker"))]);
        set(None, 3);
        let told = store.events_after(0, 9).unwrap();
        assert_eq!(told[1].event.data, json!({ "key": "sandbox.mode", "before": "host", "after": "docker" }));
        assert_eq!(told.len(), 3);
    });
}

#[test]
fn old_tasks_are_forgotten_but_none_that_somebody_waits_for() {
    check(|store| {
        let first = add(store, task("first", "a"));
        claim(store, 1, at(1));
        change(store, &first, TaskEvent::Succeeded { fence: 1 }, at(1)).unwrap();
        let open = add(store, with("open", "b", |spec| spec.after = vec![first.clone()]));
        assert_eq!(store.purge(at(50).ms, true).unwrap(), 0, "`open` needs it");
        change(store, &open, TaskEvent::Cancel, at(60)).unwrap();
        assert_eq!(store.purge(at(50).ms, true).unwrap(), 1);
        assert_eq!(store.purge(at(50).ms, false).unwrap(), 1);
        assert!(matches!(store.task(&first), Err(StoreError::NoTask(_))));
        assert!(store.task(&open).is_ok());
    });
}

/// Eight who take and end, each with a store of its own, as processes have: everything once, nothing lost.
#[test]
fn many_who_claim_at_once_never_get_the_same_task() {
    const TASKS: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let open = || Sqlite::open(dir.path()).unwrap();
    let new: Vec<NewTask> = (0..TASKS).map(|number| task("x", &format!("lane{}", number % 40))).collect();
    open().add(&new, at(0)).unwrap();
    let taken = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (open, taken) = (&open, &taken);
            scope.spawn(move || {
                let store = open();
                while store.counts().unwrap()[&TaskStatus::Done] < TASKS as u64 {
                    for task in claim_as(&store, &worker.to_string(), &Role::ALL, 3, 0, at(1)) {
                        taken.lock().unwrap().push(task.id.clone());
                        change(&store, &task.id, TaskEvent::Succeeded { fence: 1 }, at(1)).unwrap();
                    }
                }
            });
        }
    });
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.len(), TASKS);
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), TASKS);
}

/// Many threads of one process write together, and one who is refused takes nobody along.
#[test]
fn those_who_write_together_are_answered_each_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..20 {
                    let good =
                        store.add(&[task(&format!("{thread}-{number}"), "a")], at(0)).unwrap().remove(0);
                    assert_eq!(store.task(&good.task).unwrap().spec.prompt, format!("{thread}-{number}"));
                    let bad = with("x", "a", |spec| spec.after = vec!["99999".parse().unwrap()]);
                    assert!(matches!(store.add(&[bad], at(0)), Err(StoreError::NoSuchDependency(_))));
                }
            });
        }
    });
    assert_eq!(store.counts().unwrap()[&TaskStatus::Queued], 320);
    store.verify().unwrap();
}

#[test]
fn a_store_that_is_newer_or_damaged_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = Sqlite::file(dir.path());
    drop(Sqlite::open(dir.path()).unwrap());
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = Sqlite::open(dir.path()).err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
    std::fs::write(&path, "this is no database, but it is long enough to be taken for one".repeat(99))
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = Sqlite::open(dir.path()).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }) && error.remedy().is_some(), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_follower_gets_nothing_of_what_it_waited_for() {
    check(|store| {
        let first = add(store, task("first", "a"));
        let second = add(store, with("second", "b", |spec| spec.after = vec![first.clone()]));
        let taken = claim_as(store, "d", &Role::ALL, 1, 0, at(1)).remove(0);
        let failure = Failure::new(FailureClass::AuthRequired, "log in");
        let result = failed_result(&taken, &failure);
        let event = TaskEvent::Failed { fence: 1, failure };
        let change = Change {
            task: &first,
            event,
            rules: &rules(),
            jitter: 0,
            result: Some(&result),
            workspace: None,
        };
        let changed = store.change(&change, at(2)).unwrap();
        assert_eq!(changed.died, [first.clone(), second.clone()]);
        assert_eq!(store.task(&second).unwrap().result, None);
        assert!(store.task(&first).unwrap().result.is_some());
    });
}

#[test]
fn lanes_are_served_in_the_order_in_which_they_came() {
    check(|store| {
        for lane in ["z", "y", "m", "a"] {
            add(store, task(lane, lane));
        }
        assert_eq!(claim(store, 9, at(1)), ["z", "y", "m", "a"]);
    });
}

#[test]
fn a_clock_that_went_back_strands_nobody() {
    check(|store| {
        let id = add(store, task("x", "a"));
        claim(store, 1, at(1_000_000));
        change(store, &id, failed(1, FailureClass::Network), at(1_000_000)).unwrap();
        assert!(claim(store, 1, at(5)).is_empty());
        assert_eq!(claim(store, 1, at(15)), ["x"], "it waits as long as it was to wait");
    });
}

#[test]
fn nobody_starves_behind_those_who_are_for_others() {
    check(|store| {
        let many: Vec<NewTask> = (0..700).map(|number| task("not mine", &format!("l{number}"))).collect();
        store.add(&many, at(0)).unwrap();
        add(store, task("mine", "mine"));
        let claim = Claim {
            owner: "d",
            roles: &Role::ALL,
            max_tasks: 4,
            max_concurrency: 0,
            until: at(60).seconds(),
            accepts: &|spec| spec.prompt == "mine",
            new_run_id: &new_run,
        };
        assert_eq!(store.claim(&claim, at(1)).unwrap().len(), 1);
    });
}

#[test]
fn what_was_forgotten_does_not_keep_a_letter_from_being_tried_again() {
    check(|store| {
        let first = add(store, task("first", "a"));
        claim(store, 1, at(1));
        change(store, &first, TaskEvent::Succeeded { fence: 1 }, at(1)).unwrap();
        let second = add(store, with("second", "b", |spec| spec.after = vec![first.clone()]));
        claim(store, 1, at(2));
        change(store, &second, failed(1, FailureClass::Refused), at(2)).unwrap();
        assert_eq!(store.purge(at(50).ms, false).unwrap(), 1);
        change(store, &second, TaskEvent::Retry, at(60)).unwrap();
        assert_eq!(claim(store, 1, at(60)), ["second"]);
    });
}

/// Two stores in one process, and another that comes and goes: none takes another's locks away.
#[test]
fn opening_a_store_twice_frees_nobodys_locks() {
    let dir = tempfile::tempdir().unwrap();
    let long = Sqlite::open(dir.path()).unwrap();
    drop(Sqlite::open(dir.path()).unwrap());
    let id = add(&long, task("x", "a"));
    let other = std::process::Command::new("python3")
        .args(["-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute('select count(*) from tasks').fetchone()[0]); c.close()"])
        .arg(Sqlite::file(dir.path()))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&other.stdout).trim(), "1", "{other:?}");
    add(&long, task("y", "a"));
    assert_eq!(Sqlite::open(dir.path()).unwrap().counts().unwrap()[&TaskStatus::Queued], 2);
    assert!(long.is_current() && long.task(&id).is_ok());
    std::fs::remove_file(Sqlite::file(dir.path())).unwrap();
    assert!(!long.is_current());
}

#[test]
fn a_task_keeps_its_directory_until_a_retry_names_another() {
    check(|store| {
        let id = add(store, task("x", "l"));
        assert_eq!(store.task(&id).unwrap().workspace, Some(WORKSPACE));
        assert_eq!(claim(store, 1, at(1)), ["x"]);
        let failure = Failure::new(FailureClass::Refused, "another directory");
        change(store, &id, TaskEvent::Failed { fence: 1, failure }, at(2)).unwrap();
        let other = DirectoryId { device: 1, inode: u64::MAX };
        let rules = rules();
        let retry = |workspace| {
            let change = Change {
                task: &id,
                event: TaskEvent::Retry,
                rules: &rules,
                jitter: 0,
                result: None,
                workspace,
            };
            store.change(&change, at(3))
        };
        assert_eq!(retry(Some(other)).unwrap().task.workspace, Some(other));
        assert_eq!(store.task(&id).unwrap().workspace, Some(other));
        assert!(retry(Some(WORKSPACE)).is_err(), "it waits already");
        assert_eq!(store.task(&id).unwrap().workspace, Some(other), "what is refused changes nothing");
    });
}

#[test]
fn sums_hold_whatever_numbers_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    add(&store, task("a1", "a"));
    add(&store, task("b1", "b"));
    claim(&store, 9, at(1));
    let forge = |cost: f64| {
        let forged = "UPDATE runs SET ended = ?1, status = 'success', input_tokens = ?2, output_tokens = ?2, cached_tokens = ?2,
            cost_usd = ?3";
        let file = rusqlite::Connection::open(dir.path().join("ringfence.db")).unwrap();
        file.execute(forged, (i64::try_from(at(2).ms).unwrap(), i64::MAX, cost)).unwrap();
    };
    for (cost, sum) in [(-7.0, None), (f64::INFINITY, None), (0.5, Some(1.0))] {
        forge(cost);
        let most =
            Usage { input_tokens: 1 << 41, output_tokens: 1 << 41, cached_tokens: 1 << 41, cost_usd: sum };
        let spans = store.spans(1_000_000, 2, at(3)).unwrap();
        assert_eq!(spans.iter().fold(Usage::default(), |all, span| all.plus(span.usage)), most);
        let agents = store.agents().unwrap();
        assert_eq!(agents.iter().fold(Usage::default(), |all, row| all.plus(row.usage)), most);
    }
}
