package receivepack

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// TestOnDiskBeforeTheReport reads from git's own trace how many files each of its programs synced, and when it ended.
// It also records which directories we sync, and when the report is sent.
func TestOnDiskBeforeTheReport(t *testing.T) {
	t.Parallel()
	trace := t.TempDir()
	w := newWorld(t, Options{})
	w.server.env = []string{"GIT_TRACE2_EVENT=" + trace, "GIT_TRACE2_EVENT_NESTING=10"}
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	w.server.sync = func(dir string) error {
		below, err := filepath.Rel(w.Dir, dir)
		note("sync " + below)
		if err != nil {
			return err
		}
		return disk.SyncDir(dir)
	}
	w.recorder = func(end bool) {
		if end {
			note("recorded")
		}
	}
	w.server.options.Recorder = w
	w.onWrite = func(p []byte) {
		if strings.Contains(string(p), "unpack ok") {
			note("report")
		}
	}
	c := w.clone()
	w.mustPush(c, "main", "main:refs/heads/team/topic")
	syncs := traced(t, trace)
	// The pack with its index (and with newer git, the reverse index), and each ref.
	if syncs["index-pack"] < 2 {
		t.Errorf("index-pack synced %d files: %v", syncs["index-pack"], syncs)
	}
	if syncs["receive-pack"] < 2 {
		t.Errorf("receive-pack synced %d files: %v", syncs["receive-pack"], syncs)
	}
	if got := strings.Join(order,
		", "); got != "sync objects/pack, sync refs/heads, sync refs, sync refs/heads/team, sync ., recorded, report" {
		t.Errorf("in this order: %s", got)
	}
	order = nil
	w.mustPush(c, ":refs/heads/team/topic")
	if got := strings.Join(order, ", "); !strings.HasSuffix(got, "sync ., recorded, report") ||
		strings.Contains(got, "objects") {
		t.Errorf("of a deletion, in this order: %s", got)
	}
}

// The directories of new objects and refs are synced, regardless of the repository's configuration and of symbolic
// refs.
func TestOnDiskWhereverItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.Git("config", "transfer.unpackLimit", "1000")
	w.Git("config", "receive.unpackLimit", "1000")
	c := w.clone()
	w.mustPush(c, "main:refs/heads/team/real")
	w.Git("symbolic-ref", "refs/heads/link", "refs/heads/team/real")
	c.Git("update-ref", "refs/heads/main", c.Commit("next", c.ID("main")).String())
	var mu sync.Mutex
	var synced []string
	w.server.sync = func(dir string) error {
		below, err := filepath.Rel(w.Dir, dir)
		mu.Lock()
		defer mu.Unlock()
		synced = append(synced, below)
		return err
	}
	w.mustPush(c, "main:refs/heads/link")
	if got := strings.Join(synced, ", "); got != "objects/pack, refs/heads, refs, refs/heads/team, ." {
		t.Errorf("synced: %s", got)
	}
	if got := w.Git("count-objects"); !strings.HasPrefix(got, "0 objects") {
		t.Errorf("loose are %s", got)
	}
}

// traced counts, for each program of git, the files that it synced.
func traced(t *testing.T, dir string) map[string]int {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Skip("SKIPPED: this git writes no trace, so that nothing is known of what it syncs")
	}
	counts := make(map[string]int)
	known := false
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		name, n := "", 0
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var e struct {
				Event, Category, Key, Name string
				Value                      any
				Count                      int
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("%s: %s", err, lines.Text())
			}
			switch {
			case e.Event == "cmd_name":
				name = e.Name
			case e.Category == "fsync" && e.Event == "data":
				known = true
				value, err := strconv.Atoi(fmt.Sprint(e.Value))
				if err != nil {
					t.Fatal(err)
				}
				n += value
			case e.Category == "fsync" && e.Event == "counter":
				known = true
				n += e.Count
			}
		}
		f.Close()
		counts[name] += n
	}
	if !known {
		t.Skip("SKIPPED: this git does not count in its trace what it syncs")
	}
	return counts
}

// Begin and End make a world a Recorder.
func (w *world) Begin(pushes ...*Push) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse == nil {
		w.begun = append(w.begun, pushes...)
	}
	return w.refuse
}

func (w *world) End(results ...Result) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range results {
		w.ended = append(w.ended, slices.Clone(r.Made))
	}
	if w.recorder != nil {
		w.recorder(true)
	}
	return w.refuseEnd
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.server.options.Recorder = w
	c := w.clone()
	w.mustPush(c, "main")
	c.Git("update-ref", "refs/heads/main", c.Commit("other").String())
	if _, err := w.push(c, "main:refs/heads/fine", "+main", "main:refs/heads/main/below"); err == nil {
		t.Error("a ref below another one was made")
	}
	if len(w.begun) != 2 || len(w.ended) != 2 || len(w.begun[1].Updates) != 3 || len(w.ended[1]) != 2 ||
		w.begun[1].Pusher.Name != tester.Name || w.begun[1].Repo.String() != "team/app" {
		t.Errorf("recorded: %+v %+v", w.begun, w.ended)
	}
	if w.begun[0].ID == w.begun[1].ID || w.begun[0].ID == "" {
		t.Errorf("two pushes have the ID %q", w.begun[0].ID)
	}

	w.refuse = errors.New("no room")
	if out, err := w.push(c, "main:refs/heads/unrecorded"); err == nil || strings.Contains(w.refs(), "unrecorded") {
		t.Errorf("a push that cannot be recorded was taken: %s", out)
	}
	w.refuse, w.refuseEnd = nil, fault.New(fault.Unavailable, "no room")
	if out, err := w.push(c, "main:refs/heads/half"); err == nil {
		t.Errorf("a push was acknowledged that is not recorded: %s", out)
	}
	w.server.sync = func(string) error { return errors.New("input/output error") }
	w.refuseEnd = nil
	if out, err := w.push(c, "main:refs/heads/unsynced"); err == nil {
		t.Errorf("a push was acknowledged that is not on disk: %s", out)
	}
}
