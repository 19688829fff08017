package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// TestPushesWhileCollecting pushes to one repository while a collection removes all unreachable objects each second, in
// a store with a collection of the bucket. Each client makes a branch of some pushes, has git clone and check it with
// all commits that were accepted, and deletes it. Then it pushes the same objects again.
//
// PACKHORSE_PUSHES is the number of pushes in each form, PACKHORSE_PUSH_TIME their longest time, and PACKHORSE_SEED the
// seed of the random numbers.
func TestPushesWhileCollecting(t *testing.T) {
	t.Parallel()
	for name, pushes := range map[string]int{"disk": 120, "store": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if n, err := strconv.Atoi(os.Getenv("PACKHORSE_PUSHES")); err == nil {
				pushes = n
			} else if !testing.Short() {
				pushes *= 10
			}
			newCollectedPushes(t, name == "store").run(int64(pushes))
		})
	}
}

// collectedPushes is a repository that is pushed to and collected.
type collectedPushes struct {
	*stepWorld
	base                                              gitload.Commit
	accepted, deleted, refused, collections, hindered atomic.Int64
}

func newCollectedPushes(t *testing.T, isInStore bool) *collectedPushes {
	t.Helper()
	w := &collectedPushes{stepWorld: newStepWorld(t, seedOr(rand.Uint64()), isInStore)}
	w.client.Git("update-ref", "refs/heads/main", w.members["app"]["main"].String())
	base, err := gitload.Tip(t.Context(), w.client.Dir, "main")
	if err != nil {
		t.Fatal(err)
	}
	w.base = base
	return w
}

func (w *collectedPushes) run(pushes int64) {
	var clients sync.WaitGroup
	begun := time.Now()
	limit, err := time.ParseDuration(os.Getenv("PACKHORSE_PUSH_TIME"))
	if err != nil {
		limit = time.Hour
	}
	isDone := func() bool { // with many pushes, most collections are refused
		enough := w.accepted.Load() >= pushes && (w.collections.Load() > 0 || time.Since(begun) > 2*time.Minute)
		return enough || time.Since(begun) > limit || w.t.Failed()
	}
	for i := range 8 {
		random := rand.New(rand.NewPCG(w.random.Uint64(), 1))
		clients.Go(func() {
			for !isDone() {
				if err := w.branch(fmt.Sprint("w", i), 1+random.IntN(20)); err != nil {
					w.t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	ctx, stop := context.WithCancel(w.t.Context())
	var collecting sync.WaitGroup
	collecting.Go(func() { w.collect(ctx) })
	clients.Wait()
	stop()
	collecting.Wait()
	w.t.Logf("%d pushes and %d deletions were accepted in %s, %d refused because of %d collections; %d collections were "+
		"refused because of pushes", w.accepted.Load(), w.deleted.Load(), time.Since(begun).Round(time.Second),
		w.refused.Load(), w.collections.Load(), w.hindered.Load())
	if w.collections.Load() == 0 {
		w.t.Error("no collection has run")
	}
	w.check()
}

// collect collects each second.
func (w *collectedPushes) collect(ctx context.Context) {
	commands := [][]string{{"repo", "gc", "app", "--older-than", "1ms", "--root", "repos", "--state", "state"}}
	if w.bucket != nil {
		commands = append(commands, []string{"store", "gc", "--older-than", "1ms", "--config", "store.toml"})
	}
	for each := time.NewTicker(time.Second); ctx.Err() == nil; {
		for _, args := range commands {
			cmd := exec.Command(filepath.Join(binDir, "packhorse"), args...)
			cmd.Dir, cmd.Env = w.dir, gittest.Env()
			switch out, err := cmd.CombinedOutput(); {
			case err == nil:
				w.collections.Add(1)
			case strings.Contains(string(out), "try again") || strings.Contains(string(out), "is being maintained"):
				w.hindered.Add(1)
			default:
				w.t.Errorf("packhorse %q: %v\n%s", args, err, out)
			}
		}
		select {
		case <-ctx.Done():
		case <-each.C:
		}
	}
}

// branch pushes a new branch commit by commit, checks it, and deletes it. The commits are the same each time.
func (w *collectedPushes) branch(name string, pushes int) error {
	p := gitload.NewPusher(w.server.http, w.token, "app", name, w.base)
	defer p.Client.Close()
	made := 0
	for range pushes {
		_, _, err := p.Push(w.t.Context())
		switch {
		case err == nil:
			made++
			w.accepted.Add(1)
		case strings.Contains(err.Error(), "again"): // "push again", or "try again"
			w.refused.Add(1)
		default:
			return err
		}
	}
	if made == 0 {
		return nil
	}
	dir := filepath.Join(w.dir, "clone-"+name)
	defer os.RemoveAll(dir)
	if out, err := clientGit(w.t, basicHeader("alice", w.token), "", "clone", "-q", "--bare", "--single-branch",
		"--branch", name, w.server.http+"/app", dir); err != nil {
		return fmt.Errorf("clone: %w\n%s", err, out)
	}
	clone := gittest.At(w.t, dir)
	out, err := clone.Try("fsck", "--full", "--strict")
	if err != nil {
		return fmt.Errorf("fsck: %w\n%s", err, out)
	}
	count, err := clone.Try("rev-list", "--count", p.Tip.ID, "^"+w.base.ID)
	if err == nil && count != fmt.Sprint(made) {
		err = fmt.Errorf("the branch has %s commits after %d pushes", count, made)
	}
	return errors.Join(err, w.delete(p))
}

// delete deletes the branch of a pusher (gitprotocol-pack(5)).
func (w *collectedPushes) delete(p *gitload.Pusher) error {
	request := pktline.Append(nil, p.Tip.ID+" "+strings.Repeat("0", len(p.Tip.ID))+" refs/heads/"+p.Branch+
		"\x00report-status delete-refs")
	for range 10 {
		body, _, err := p.Client.Post(w.t.Context(), "app", "git-receive-pack", pktline.AppendFlush(request))
		if err != nil && strings.Contains(err.Error(), "try again") {
			w.refused.Add(1)
			continue
		}
		if err != nil {
			return err
		}
		report, err := io.ReadAll(body)
		body.Close()
		if err == nil && !strings.Contains(string(report), "ok refs/heads/"+p.Branch) {
			err = fmt.Errorf("the report of the deletion is %q", report)
		}
		w.deleted.Add(1)
		return err
	}
	return errors.New("collections refuse the deletion again and again")
}
