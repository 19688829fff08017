package manage

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// fork compares forks with clones that share objects.
func (m *manage) fork(ctx context.Context) []world.Figure {
	const refs = 100
	var update strings.Builder
	for i := range refs {
		fmt.Fprintf(&update, "create refs/heads/fork/%d %s\n", i, m.tip.ID)
	}
	source := m.Repository(name)
	world.Must(gitload.RunGit(ctx, source, strings.NewReader(update.String()), "update-ref", "--stdin"))
	world.Check(m.server.Maintain(ctx, name))
	m.forkTo(ctx, "first") // moves the objects to a network
	n := 0
	sample := func(each func(i int)) float64 {
		var times loadgen.Samples
		for range m.samples {
			n++
			times = append(times, world.TimeOf(func() { each(n) }))
		}
		return times.Summarize().P50
	}
	peer, ours, _ := world.Compare(m.rounds, func() float64 {
		return sample(func(i int) {
			world.Must(gitload.RunGit(ctx, m.Dir, nil, "clone", "-q", "--bare", "--shared", "--", source,
				fmt.Sprint("shared", i)))
		})
	}, func() float64 { return sample(func(i int) { m.forkTo(ctx, fmt.Sprint("fork", i)) }) })
	size := kilobytes(m.Repository("first"))
	return []world.Figure{
		world.Ratio(fmt.Sprintf("median time of a fork with %d refs", refs), "ms", 0.3, ours, peer),
		world.NewFigure("space of a fork", "<= 32 KB", size, size <= 32, "%.0f KB on disk", size),
	}
}

func (m *manage) forkTo(ctx context.Context, target string) {
	world.Must(m.client.Repositories().Fork(ctx, connect.NewRequest(&packhorsev1.ForkRequest{Repository: name,
		Target: target})))
}

// manyForks measures the space of forks, and the packs that their clones need.
func (m *manage) manyForks(ctx context.Context) []world.Figure {
	alone := kilobytes(m.Root())
	for i := range m.forks {
		m.forkTo(ctx, fmt.Sprint("fork", i))
	}
	r := kilobytes(m.Root()) / alone
	c := gitload.NewClient(m.server.URL, "")
	defer c.Close()
	made := func() float64 { return world.Must(m.server.Metrics(ctx)).Sum("packhorse_packs_made_total") }
	before := made()
	for i := range m.forks {
		world.Must(c.Fetch(ctx, fmt.Sprint("fork", i), m.tip.ID, 0))
	}
	packs := made() - before
	return []world.Figure{
		world.NewFigure(fmt.Sprintf("space of %d forks", m.forks), "<= 1.2", r, r <= 1.2,
			"%.3f times the repository of %.0f MB", r, alone/1024),
		world.NewFigure("packs made for a clone of each", "<= 1", packs, packs <= 1, "%.0f", packs),
	}
}

// collect compares collections in copies of a repository with a deleted branch.
func (m *manage) collect(ctx context.Context) []world.Figure {
	clone := filepath.Join(m.Dir, "deleted")
	world.Must(gitload.RunGit(ctx, m.Dir, nil, "clone", "-q", "--bare", "--", m.Repository(name), clone))
	// a tenth of the history becomes unreachable
	history := strings.Fields(world.Must(gitload.RunGit(ctx, clone, nil, "rev-list", "--first-parent", "HEAD")))
	old := history[len(history)/10]
	var refs strings.Builder
	for line := range strings.Lines(world.Must(gitload.RunGit(ctx, clone, nil, "for-each-ref", "--format=%(refname)"))) {
		fmt.Fprintf(&refs, "delete %s", line)
	}
	world.Must(gitload.RunGit(ctx, clone, strings.NewReader(refs.String()), "update-ref", "--stdin"))
	world.Must(gitload.RunGit(ctx, clone, nil, "update-ref", "HEAD", old))
	n := 0
	copyTo := func(prefix string) string {
		n++
		to := fmt.Sprint(prefix, n)
		world.Check(os.CopyFS(m.Repository(to), os.DirFS(clone)))
		return to
	}
	peer, ours, _ := world.Compare(m.rounds, func() float64 {
		repo, begun := m.Repository(copyTo("peer")), world.ChildrenCPU()
		world.Must(gitload.RunGit(ctx, repo, nil, "repack", "-q", "-d", "--cruft", "--cruft-expiration=now"))
		return loadgen.Milliseconds(world.ChildrenCPU() - begun)
	}, func() float64 {
		repo := copyTo("ours")
		return loadgen.Milliseconds(m.tree.During(func() { m.collectNow(ctx, repo) }))
	})
	return []world.Figure{world.Ratio("CPU time of a collection", "ms", 1.2, ours, peer)}
}

func (m *manage) collectNow(ctx context.Context, repo string) {
	world.Must(m.client.Repositories().Collect(ctx, connect.NewRequest(&packhorsev1.CollectRequest{Repository: repo,
		OlderThan: durationpb.New(0)})))
}

// beside compares ls-refs during collections with ls-refs of an idle server.
func (m *manage) beside(ctx context.Context) []world.Figure {
	t := world.Must(loadgen.ParseTarget(m.server.URL+"/"+name+".git", false))
	request := t.Post("git-upload-pack", "", gitload.LsRefs(git.SHA1, "refs/heads/"))
	probe := func() float64 {
		l := loadgen.Repeat(t, request, nil, time.Minute)
		l.Conns, l.Arrivals, l.Connect, l.Duration, l.Urgent = loadgen.ProbeConns, loadgen.FixedRate(loadgen.ProbeRate), true,
			m.duration, true
		out := world.Must(l.Run(ctx))
		world.Check(out.Failures.Detail())
		return out.Latency().Summarize().P99
	}
	collections := 0
	idle, busy, r := world.Compare(m.rounds, probe, func() float64 {
		stop, cancel := context.WithCancel(ctx)
		var load sync.WaitGroup
		var err error
		load.Go(func() {
			defer world.Rescue(&err)
			for ; stop.Err() == nil; collections++ {
				m.collectNow(ctx, name)
			}
		})
		p99 := probe()
		cancel()
		load.Wait()
		world.Check(err)
		return p99
	})
	return []world.Figure{world.NewFigure("99th percentile of ls-refs beside collections", "<= 2", r, r <= 2,
		"%.2f (%.2f ms, idle %.2f ms, %d collections)", r, busy, idle, collections)}
}

// secret is the path and the content of the file that the part purge removes.
const secret = "secret"

// purge removes an object of a repository with many packs.
func (m *manage) purge(ctx context.Context) []world.Figure {
	source := m.Repository(name)
	object := strings.TrimSpace(world.Must(gitload.RunGit(ctx, source, nil, "rev-parse", "other:"+secret)))
	world.Must(gitload.RunGit(ctx, source, nil, "update-ref", "-d", "refs/heads/other"))
	peerRepo := filepath.Join(m.Dir, "peer")
	world.Must(gitload.RunGit(ctx, m.Dir, nil, "clone", "-q", "--bare", "--", source, peerRepo)) // with hard links
	peer := world.TimeOf(func() { world.Must(gitload.RunGit(ctx, peerRepo, nil, "repack", "-q", "-a", "-d")) })
	receipt := world.Must(m.client.Repositories().Purge(ctx, connect.NewRequest(&packhorsev1.PurgeRequest{
		Repository: name, ObjectIds: []string{object}}))).Msg
	hidden := loadgen.Milliseconds(receipt.Hidden.AsTime().Sub(receipt.Started.AsTime()))
	gone := receipt.Ended.AsTime().Sub(receipt.Started.AsTime())
	return []world.Figure{
		world.NewFigure("time until the object is unreadable", "<= 1000 ms", hidden, hidden <= 1000, "%.1f ms", hidden),
		world.Ratio(fmt.Sprintf("time until it is gone from %d packs", m.packs), "s", 0.3, gone.Seconds(), peer.Seconds()),
	}
}

// list measures the time of all pages of a list.
func (m *manage) list(ctx context.Context) []world.Figure {
	var times loadgen.Samples
	for range max(5, m.rounds) {
		n := 0
		times = append(times, world.TimeOf(func() {
			for _, err := range m.client.AllRepositories(ctx, &packhorsev1.ListRequest{PageSize: 1000}) {
				world.Check(err)
				n++
			}
		}))
		if n < m.repositories {
			world.Check(fmt.Errorf("the list has %d repositories, want %d", n, m.repositories))
		}
	}
	ms := times.Summarize().P50
	return []world.Figure{world.NewFigure(fmt.Sprintf("list of %d repositories", m.repositories), "<= 50 ms", ms, ms <= 50,
		"%.1f ms", ms)}
}

// backup compares backups of repositories that did not change.
func (m *manage) backup(ctx context.Context) []world.Figure {
	ours := func() float64 {
		return world.TimeOf(func() {
			world.Check(m.RunProgram(ctx, "backup", filepath.Join(m.Dir, "backup"), "--root", m.Root(), "--state",
				m.server.State))
		}).Seconds()
	}
	peer := func() float64 {
		return world.TimeOf(func() {
			cmd := exec.CommandContext(ctx, "rsync", "-a", m.Root()+"/", filepath.Join(m.Dir, "copy"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				world.Check(fmt.Errorf("rsync: %w: %s", err, loadgen.Clean(out)))
			}
		}).Seconds()
	}
	ours()
	peer()
	p, o, _ := world.Compare(m.rounds, peer, ours)
	what := fmt.Sprintf("time of a backup of %d unchanged repositories", m.repositories)
	return []world.Figure{world.Ratio(what, "s", 0.5, o, p)}
}

// kilobytes returns the space of all files in a directory, in blocks of the disk. Hard links count once.
func kilobytes(dir string) float64 {
	var blocks int64
	seen := map[uint64]bool{}
	world.Check(filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && !seen[s.Ino] {
			seen[s.Ino] = true
			blocks += s.Blocks
		}
		return nil
	}))
	return float64(blocks) / 2
}
