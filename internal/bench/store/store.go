// Package store measures servers whose repositories are in object storage, against a server with plain repositories on
// the same machine.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// options are the flags of `packhorse-bench store`.
type options struct {
	versitygw     string
	store         string // empty: versitygw is started
	endpoint      string
	delay         time.Duration
	rounds        int
	duration      time.Duration
	clients       int
	burst         int
	pushes        int
	megabytes     int
	repositories  int
	refs          int
	outage        time.Duration
	restoreScript string

	program world.Program
}

const help = `Starts an S3 server (versitygw), a server with plain repositories, and servers whose repositories are in a
store, and compares them. All run on this machine, and each pair is measured in turn. The limit of small requests is
raised on all servers, so that --burst fits.

The parts. Values that are compared are medians of --rounds, each with a run of both servers:

  push         latency that the store adds to --pushes pushes of one small commit, one after the other. A round trip is
               the time to create a small object. The report also has the time until a client has the refs, the time to
               read an absent object, and the requests to the storage for each push
  push-rate    pushes per second of 8 clients: to one repository through two nodes, and to --repositories repositories
               against plain ones. Each client has a branch of its own
  commit-rate  commits per second of 32 callers to one branch, against pushes per second of 8 clients
  clone        throughput of cached clones of --mb MB by --clients clients, against plain repositories
  ls-refs      ls-refs per second of --clients clients, against plain repositories, and the freshness checks that
               --burst clients cause at the same time
  first-clone  git clone of --mb MB through a node with an empty cache, against the next one through the same node
  refs         pushes to a repository with --refs refs: time without git receive-pack, memory of the server
  outage       20 fetches per second of known commits, and pushes, while the storage is unreachable for --outage: it
               refuses connections for half of that time, then it is silent. Fetches that failed, and pushes that were
               not refused or of which a byte was read
  kill         a gateway with two nodes, and fetches and pushes to 8 repositories. One node is killed. Fetches that
               failed before their first byte, and the longest time until a repository accepts a push
  restore      deploy/store/restore.sh restores a repository of --mb MB from the bucket: time, git fsck, refs

A pushing client sends what git sends, without a process. --delay is the delay of a link in front of the storage, as
that of a distant region.

With --store and --endpoint the storage is another server, whose keys are in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY. Each part makes a store below that URL, and removes it at the end. All times include the work of
clients and storage on the same machine.`

// Command returns `packhorse-bench store`.
func Command(env loadgen.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Measure servers whose repositories are in object storage, against plain repositories",
		Long:  help,
		Example: `  packhorse-bench store --versitygw bin/store/versitygw
  packhorse-bench store push --delay 10ms
  packhorse-bench store outage --outage 5m --json
  packhorse-bench store clone --store s3://git/bench --endpoint http://127.0.0.1:9000`,
	}
	f := cmd.Flags()
	f.StringVar(&o.versitygw, "versitygw", "versitygw", "the S3 server `PROGRAM` to start")
	f.StringVar(&o.store, "store", "", "`URL` below which stores are made, as s3://BUCKET/PREFIX (default: of versitygw)")
	f.StringVar(&o.endpoint, "endpoint", "", "`URL` of the S3 server of --store, as http://127.0.0.1:9000")
	f.DurationVar(&o.delay, "delay", 0, "delay of the storage in each direction")
	f.IntVar(&o.rounds, "rounds", 3, "runs of each comparison")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "duration of each run")
	f.IntVar(&o.clients, "clients", 8, "clients of clones and ls-refs")
	f.IntVar(&o.burst, "burst", 1000, "clients that ask for refs at the same time")
	f.IntVar(&o.pushes, "pushes", 100, "pushes of each run of push and refs")
	f.IntVar(&o.megabytes, "mb", 90, "size of the large repository in megabytes")
	f.IntVar(&o.repositories, "repositories", 100, "repositories that get pushes")
	f.IntVar(&o.refs, "refs", 1_000_000, "refs of the repository of the part refs")
	f.DurationVar(&o.outage, "outage", 30*time.Second, "duration of the outage")
	f.StringVar(&o.restoreScript, "restore-script", "deploy/store/restore.sh", "`PATH` of restore.sh")
	check := func() error {
		return cmp.Or(loadgen.Positive(f, "rounds", "pushes", "mb", "repositories", "refs", "duration", "outage"),
			loadgen.AreClients(f, "clients", "burst"), o.check())
	}
	return world.Command(cmd, env, &o.program, parts, check, func(ctx context.Context, part, dir string) (*stores, error) {
		return o.open(ctx, env, part, dir)
	})
}

func (o *options) check() error {
	switch {
	case o.delay < 0:
		return fmt.Errorf("--delay %v: must be positive", o.delay)
	case (o.store == "") != (o.endpoint == ""):
		return errors.New("--store and --endpoint: give both, or none to start versitygw")
	case o.store != "" && os.Getenv("AWS_ACCESS_KEY_ID") == "":
		return errors.New("--store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case o.endpoint != "" && !strings.HasPrefix(o.endpoint, "http://"):
		return fmt.Errorf("--endpoint %.60q: want a server on this machine, as http://127.0.0.1:9000", o.endpoint)
	}
	return nil
}

// parts are in the order of the report.
var parts = []world.Part[*stores]{
	{Name: "push", Measure: (*stores).push},
	{Name: "push-rate", Measure: (*stores).pushRate},
	{Name: "commit-rate", Measure: (*stores).commitRate},
	{Name: "clone", Measure: (*stores).clone},
	{Name: "ls-refs", Measure: (*stores).lsRefs},
	{Name: "first-clone", Measure: (*stores).firstClone},
	{Name: "refs", Measure: (*stores).manyRefs},
	{Name: "outage", Measure: (*stores).outage},
	{Name: "kill", Measure: (*stores).kill},
	{Name: "restore", Measure: (*stores).restore},
}
