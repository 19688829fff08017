//! Drives gitoxide. See clients_test.go in e2e for the operations.

use gix::progress::Discard;
use gix::remote::fetch::{Shallow, Tags};
use gix::remote::{ref_map, Direction};
use gix::Repository;
use std::sync::atomic::AtomicBool;
use std::{env, error::Error, fs, process};

type Result = std::result::Result<(), Box<dyn Error>>;

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Err(err) = run(&args) {
        eprintln!("{err:?}");
        process::exit(1);
    }
}

fn run(args: &[&str]) -> Result {
    match *args {
        ["version"] => println!("{}", env!("CARGO_PKG_VERSION")), // that of the gix crate
        ["ls-remote", url] => list(url)?,
        ["clone", url, dir] => {
            create(url, dir, "*")?;
            fetch(dir, Tags::All, Shallow::NoChange)?
        }
        ["shallow", url, dir, depth] => {
            single(url, dir, "main", Shallow::DepthAtRemote(depth.parse()?))?
        }
        ["branch", url, dir, branch] => single(url, dir, branch, Shallow::NoChange)?,
        ["fetch", dir] => fetch(dir, Tags::Included, Shallow::NoChange)?,
        ["tags", dir] => fetch(dir, Tags::All, Shallow::NoChange)?,
        ["deepen", dir, depth] => fetch(dir, Tags::None, Shallow::DepthAtRemote(depth.parse()?))?,
        _ => return Err(format!("gitoxide has nothing for {}", args.join(" ")).into()),
    }
    Ok(())
}

fn single(url: &str, dir: &str, branch: &str, shallow: Shallow) -> Result {
    create(url, dir, branch)?;
    fetch(dir, Tags::None, shallow)
}

/// Makes a repository whose origin has these branches.
fn create(url: &str, dir: &str, branches: &str) -> Result {
    let config = gix::init(dir)?.path().join("config");
    let text = fs::read_to_string(&config)?
        + &format!("[remote \"origin\"]\n\turl = {url}\n")
        + &format!("\tfetch = +refs/heads/{branches}:refs/remotes/origin/{branches}\n");
    Ok(fs::write(config, text)?)
}

fn fetch(dir: &str, tags: Tags, shallow: Shallow) -> Result {
    let repo = gix::open(dir)?;
    let remote = repo.find_remote("origin")?.with_fetch_tags(tags);
    let pending = remote
        .connect(Direction::Fetch)?
        .prepare_fetch(Discard, ref_map::Options::default())?;
    pending
        .with_shallow(shallow)
        .receive(Discard, &AtomicBool::new(false))?;
    Ok(())
}

fn list(url: &str) -> Result {
    let scratch = env::temp_dir().join(format!("gitoxide-{}", process::id()));
    let listed = gix::init_bare(&scratch)
        .map_err(Into::into)
        .and_then(|repo| list_in(&repo, url));
    fs::remove_dir_all(&scratch)?;
    listed
}

fn list_in(repo: &Repository, url: &str) -> Result {
    let options = ref_map::Options {
        prefix_from_spec_as_filter_on_remote: false,
        ..Default::default()
    };
    let (refs, _) = repo
        .remote_at(url)?
        .connect(Direction::Fetch)?
        .ref_map(Discard, options)?;
    for (name, id, _) in refs.remote_refs.iter().map(|r| r.unpack()) {
        if let Some(id) = id {
            println!("{id}\t{name}");
        }
    }
    Ok(())
}
