package worker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

var needle = &workerv1.Document{Branches: 1, Size: 6, Path: []byte("f"), Content: []byte("needle")}

// send writes a message. If it fails, the reader at the other end fails too.
func send(w io.Writer, m proto.Message) { _ = ipc.Write(w, m) }

func TestJobsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	jobs, in := io.Pipe()
	reports, out := io.Pipe()
	ended := make(chan error, 1)
	build := ipc.Build{Version: "test"}
	go func() {
		err := Index(IndexOptions{Build: build, In: jobs, Out: out})
		out.Close()
		jobs.Close()
		ended <- err
	}()
	w, r := bufio.NewWriter(in), bufio.NewReader(reports)
	if err := ipc.ReadHello(r, build); err != nil {
		t.Fatal(err)
	}
	do := func(job *workerv1.Job) *workerv1.Report {
		t.Helper()
		send(w, &workerv1.IndexRequest{Job: job})
		if !job.Delta {
			send(w, &workerv1.IndexRequest{Document: needle})
			send(w, &workerv1.IndexRequest{Finish: true})
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		var accepted, done workerv1.IndexResponse
		if err := ipc.Read(r, &accepted); err != nil || !accepted.Accepted {
			t.Fatalf("got %v, %v; want an accepted job", &accepted, err)
		}
		if err := ipc.Read(r, &done); err != nil || done.Report == nil {
			t.Fatalf("got %v, %v; want a report", &done, err)
		}
		return done.Report
	}
	job := &workerv1.Job{Dir: dir, Branches: []*workerv1.Branch{{Name: "main",
		Commit: "0123456789012345678901234567890123456789"}}, MaxFile: 1 << 20, ShardSize: 1 << 20}
	for i := range 3 {
		job.Id, job.Repository = uint32(i+1), fmt.Sprintf("app%d", i)
		report := do(job)
		if report.Error != "" || report.Documents != 1 || report.Bytes != 6 || len(report.Shards) != 1 {
			t.Fatalf("job %d: got report %v, want one shard with one document of 6 bytes", i, report)
		}
		if _, err := os.Stat(filepath.Join(dir, report.Shards[0])); err != nil {
			t.Error(err)
		}
	}
	// There is no index to add changes to. The worker ends, because the job may have unread messages.
	job.Id, job.Repository, job.Delta = 9, "none", true
	if report := do(job); !report.Rebuild {
		t.Fatalf("delta without an index: got report %v, want rebuild", report)
	}
	if err := <-ended; err != nil {
		t.Errorf("Index: got error %v, want none", err)
	}
}

func TestInputEndsBetweenJobsOrWithin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := &workerv1.Job{Dir: dir, Id: 1, Repository: "app", Branches: []*workerv1.Branch{{Name: "main",
		Commit: "0123456789012345678901234567890123456789"}}, MaxFile: 1 << 20, ShardSize: 1 << 20}
	for _, whole := range []bool{true, false} {
		jobs, in := io.Pipe()
		go func() {
			w := bufio.NewWriter(in)
			send(w, &workerv1.IndexRequest{Job: job})
			send(w, &workerv1.IndexRequest{Document: needle})
			if whole {
				send(w, &workerv1.IndexRequest{Finish: true})
			}
			w.Flush()
			in.Close()
		}()
		if err := Index(IndexOptions{In: jobs, Out: io.Discard}); (err == nil) != whole {
			t.Errorf("Index with a complete job %v: got error %v", whole, err)
		}
	}
}
