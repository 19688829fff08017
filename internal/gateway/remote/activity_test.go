package remote_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// While a pack is on its way both processes list the request under one ID, and know whose it is and how much of it has
// gone.
func TestOneRequestInTwoProcesses(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent, release := make(chan struct{}), make(chan struct{})
			o.source = &madeUp{send: func(_ context.Context, out packsource.Output) error {
				var err error
				for range 3 { // more than a message carries
					_, err = out.Write(packet)
				}
				close(sent)
				<-release
				return err
			}}
			w := newWorld(t, o)
			request := w.pack()
			done := make(chan error, 1)
			go func() {
				_, err := post(w.url+"/app/git-upload-pack", request)
				done <- err
			}()
			<-sent
			var at, there []inflight.Snapshot
			if !eventually(func() bool {
				at, _ = w.boards.gateway.Requests(10)
				there, _ = w.boards.node.Requests(10)
				return len(at) == 1 && len(there) == 1 && there[0].Stage == inflight.Sending
			}) {
				t.Fatalf("%+v, %+v", at, there)
			}
			if a, b := at[0], there[0]; b.Bytes == 0 || a.ID == "" || a.ID != b.ID || a.Repository != "app" ||
				b.Repository != "app" || a.Caller != "ada" || b.Caller != "ada" ||
				a.Kind != "fetch" || b.Kind != "upload_pack" {
				t.Errorf("%+v, %+v", a, b)
			}
			close(release)
			if err := <-done; err != nil {
				t.Error(err)
			}
			if !eventually(func() bool {
				_, m := w.boards.gateway.Requests(0)
				_, n := w.boards.node.Requests(0)
				return m+n == 0
			}) {
				t.Error("requests that have ended are listed")
			}
		})
	}
}

// post sends a request as git does, and reads the answer to its end.
func post(url string, body []byte) (string, error) {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	r.Header.Set("Git-Protocol", "version=2")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// The log lines of both processes have the ID, and what git used.
func TestTotalsOfARequest(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("app.git", 1<<20)
			w.clone(repo, "app", "2")
			work := w.work(repo, 100)
			work.Git("push", "-q", w.url+"/app", "main")
			line := func(text ...string) string {
				var found string
				eventually(func() bool {
					for l := range strings.Lines(w.log.String()) {
						all := true
						for _, part := range text {
							all = all && strings.Contains(l, part)
						}
						if all {
							found = l
						}
					}
					return found != ""
				})
				return found
			}
			for at, there := range map[string]string{"operation=fetch ": "command=fetch ",
				"operation=push ": "operation=receive_pack "} {
				a, b := line("msg=request ", at), line("msg=transfer ", there)
				id := regexp.MustCompile(`request=(\S+) `).FindStringSubmatch(a)
				if id == nil || !strings.Contains(b, " "+id[0]) {
					t.Errorf("the lines\n%s%s", a, b)
				}
				for _, l := range []string{a, b} {
					if !regexp.MustCompile(` git_commands=[1-9]\d* git_cpu_ms=\S* git_queue_ms=\S* git_max_rss=[1-9]`).MatchString(l) {
						t.Errorf("no totals: %s", l)
					}
					if at == "operation=fetch " && !regexp.MustCompile(` pack_source=git select_ms=0 write_ms=\d*[.1-9]`).MatchString(l) {
						t.Errorf("the line does not say what made the pack: %s", l)
					}
				}
			}
		})
	}
}

// TestHostileRequestIDs sends request IDs that are not fit for logs and headers. They are ignored.
func TestHostileRequestIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	w.repo("app.git", 100)
	board := inflight.NewBoard()
	ctx, r := board.Begin(t.Context(), "fetch", "mine")
	defer r.End()
	r.Describe("", "", "caller\r\nX: y")
	if _, err := w.ask(ctx, "app", lsRefs(), &answer{}); err != nil {
		t.Errorf("a caller with a strange name: %v", err)
	}
	if !eventually(func() bool { return strings.Contains(w.log.String(), "request=mine ") }) {
		t.Errorf("the node's log has no line with request=mine:\n%s", w.log)
	}
	if log := w.log.String(); strings.Contains(log, "\r") {
		t.Errorf("the node's log contains the caller's carriage return: %q", log)
	}
}
