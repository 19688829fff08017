package worker

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

func TestJobsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	jobs, in := io.Pipe()
	reports, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Index(IndexOptions{In: jobs, Out: out})
		out.Close()
		jobs.Close()
		ended <- err
	}()
	w, r := ipc.NewWriter(in, 4<<10), ipc.NewReader(reports, 4<<10)
	do := func(job ipc.Job) (report ipc.Report) {
		t.Helper()
		if err := w.JSON(ipc.KindJob, job); err != nil {
			t.Fatal(err)
		}
		if !job.Delta {
			if err := w.Document(ipc.Document{Branches: 1, Size: 6, Path: []byte("f"), Content: []byte("needle")}); err != nil {
				t.Fatal(err)
			}
			w.Frame(ipc.KindFinish, nil)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if kind, _, err := r.Frame(nil); err != nil || kind != ipc.KindTaken {
			t.Fatal(kind, err)
		}
		kind, b, err := r.Frame(nil)
		if err != nil || kind != ipc.KindReport {
			t.Fatal(kind, err)
		}
		if err := json.Unmarshal(b, &report); err != nil {
			t.Fatal(err)
		}
		return report
	}
	job := ipc.Job{Dir: dir, Branches: []ipc.Branch{{Name: "main", Commit: "0123456789012345678901234567890123456789"}}, MaxFile: 1 << 20, ShardSize: 1 << 20}
	for i := range 3 {
		job.ID, job.Repository = uint32(i+1), fmt.Sprintf("app%d", i)
		report := do(job)
		if report.Failed() || report.Documents != 1 || report.Bytes != 6 || len(report.Shards) != 1 {
			t.Fatalf("%+v", report)
		}
		if _, err := os.Stat(filepath.Join(dir, report.Shards[0])); err != nil {
			t.Error(err)
		}
	}
	// There is nothing to put changes on: of that job more may follow than was read, so the process does no other.
	job.ID, job.Repository, job.Delta = 9, "none", true
	if report := do(job); !report.Rebuild {
		t.Fatalf("%+v", report)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestInputEndsBetweenJobsOrWithin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := ipc.Job{Dir: dir, ID: 1, Repository: "app", Branches: []ipc.Branch{{Name: "main", Commit: "0123456789012345678901234567890123456789"}}, MaxFile: 1 << 20, ShardSize: 1 << 20}
	for _, whole := range []bool{true, false} {
		jobs, in := io.Pipe()
		go func() {
			w := ipc.NewWriter(in, 4<<10)
			w.JSON(ipc.KindJob, job)
			w.Document(ipc.Document{Branches: 1, Size: 6, Path: []byte("f"), Content: []byte("needle")})
			if whole {
				w.Frame(ipc.KindFinish, nil)
			}
			w.Flush()
			in.Close()
		}()
		if err := Index(IndexOptions{In: jobs, Out: io.Discard}); (err == nil) != whole {
			t.Errorf("whole: %v: %v", whole, err)
		}
	}
}
