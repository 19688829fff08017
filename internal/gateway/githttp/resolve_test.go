package githttp_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestResolveOverHTTP(t *testing.T) {
	t.Parallel()
	node0 := &revisions{}
	s := serve(t, &fakeNode{}, options{auth: onlyApp, resolver: node0})
	const (
		found  = `"oid":"0123456789012345678901234567890123456789","type":"commit","ref":"refs/heads/main","incarnation":"node","epoch":"1","generation":"1152921504606846976"}`
		app    = `{"repo":"team/app","rev":"main",` + found
		none   = `{"repo":"team/app","rev":"none","error":{"kind":"not_found","message":"no revision none"}}`
		hidden = `{"repo":"team/secret","rev":"main","error":{"kind":"not_found","message":`
		list   = "POST /-/api/v1/resolve"
	)
	for _, test := range []struct {
		request, who, body string
		status             int
		want               string // begins so; "=": is that
	}{
		{request: "GET /-/api/v1/resolve?repo=team/app&rev=main", status: 200, want: "=" + app + "\n"},
		{request: "GET /-/api/v1/resolve?repo=team/app", status: 200, want: `{"repo":"team/app","rev":"",` + found},
		{request: "GET /-/api/v1/resolve?repo=/team/app/&rev=main%5E%7B%7D", status: 200,
			want: `{"repo":"/team/app/","rev":"main^{}",` + found},
		{request: "GET /-/api/v1/resolve?repo=team/app&rev=main&rev=none", status: 200, want: "=" + `{"results":[` +
			app + "," + none + "]}\n"},
		{request: "GET /-/api/v1/resolve?repo=team/app&rev=none", status: 404, want: "=" + none + "\n"},
		{request: "GET /-/api/v1/resolve?repo=team/app&rev=twice", status: 409,
			want: `{"repo":"team/app","rev":"twice","error":{"kind":"exists",`},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main", status: 401, want: "say who"},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main", who: "bob", status: 404, want: hidden},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main", who: "alice", status: 200,
			want: `{"repo":"team/secret","rev":"main",` + found},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main", who: "wrong", status: 401, want: "wrong"},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main", who: "down", status: 503, want: "down"},
		{request: "GET /-/api/v1/resolve?repo=team/app&rev=main&repo=team/secret&rev=main", status: 200,
			want: `{"results":[` + app + `,{"repo":"team/secret","rev":"main","error":{"kind":"unauthenticated",`},
		{request: "GET /-/api/v1/resolve?repo=team/secret&rev=main&repo=team/app&rev=main", who: "bob", status: 200,
			want: `{"results":[` + hidden},
		{request: "GET /-/api/v1/resolve?repo=../x", status: 404,
			want: `{"repo":"../x","rev":"","error":{"kind":"not_found"`},
		{request: "GET /-/api/v1/resolve?repo=", status: 400, want: `{"repo":"","rev":"","error":{"kind":"invalid"`},
		{request: "GET /-/api/v1/resolve", status: 400, want: "use one repo"},
		{request: "GET /-/api/v1/resolve?repo=a&repo=b&repo=c&rev=x&rev=y", status: 400, want: "use one repo"},
		{request: "GET /-/api/v1/resolve?repo=a&token=x", status: 400, want: "unknown parameter"},
		{request: "GET /-/api/v1/resolve?repo=a" + strings.Repeat("&rev=", 1001), status: 400, want: "1001 questions"},
		{request: "PUT /-/api/v1/resolve?repo=a", status: 405, want: "use GET or POST"},
		{request: list, body: `{"questions": [{"repo": "team/app", "rev": "main"}]}`, status: 200, want: "=" +
			`{"results":[` + app + "]}\n"},
		{request: list, body: `{"questions": []}`, status: 200, want: "=" + `{"results":[]}` + "\n"},
		{request: list, body: `{"questions": [{"repo": "team/app", "path": "main"}]}`, status: 400,
			want: "the questions are not JSON"},
		{request: list, body: `{"questions": []} {}`, status: 400, want: "the questions are not JSON"},
		{request: list, body: `[`, status: 400, want: "the questions are not JSON"},
		{request: list, body: `{"questions": [{}` + strings.Repeat(",{}", 1000) + `]}`, status: 400,
			want: "1001 questions"},
		{request: list, body: `{"questions": [{"repo": "` + strings.Repeat("a", 1<<20) + `"}]}`, status: 400, want: ""},
	} {
		c := s.dial()
		headers := ""
		if test.who != "" {
			headers = "Authorization: Bearer " + test.who + "\r\n"
		}
		if strings.HasPrefix(test.request, "POST") {
			headers += fmt.Sprintf("Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n",
				len(test.body))
		}
		c.send(test.request + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + headers + "\r\n" + test.body)
		response, body, err := c.answer()
		if err != nil {
			t.Errorf("%.100s: error = %v, want none", test.request, err)
			continue
		}
		want, whole := strings.CutPrefix(test.want, "=")
		if response.StatusCode != test.status || !strings.HasPrefix(body, want) || whole && body != want {
			t.Errorf("%.100s %.50s: %s %.300s\nwant %d %s", test.request, test.body, response.Status, body, test.status,
				test.want)
		}
		if test.status == 401 && response.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%.100s: a refusal without a challenge", test.request)
		}
	}
	node0.mu.Lock()
	defer node0.mu.Unlock()
	for _, q := range node0.asked {
		switch repo := q.Repository.String(); {
		case repo == "team/secret" && q.Revision == "main": // alice's
		case repo != "team/app" && !strings.HasPrefix(repo, ".packhorse/absent/"):
			t.Errorf("question about %s, want team/app or an absent one", repo)
		}
	}
	node0.err = fault.Retry(fault.Unavailable, 5e9, "away")
	c := s.dial()
	node0.mu.Unlock()
	c.send("GET /-/api/v1/resolve?repo=team/app HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	response, body, err := c.answer()
	node0.mu.Lock()
	if err != nil || response.StatusCode != 503 || response.Header.Get("Retry-After") != "5" {
		t.Errorf("error = %v, response = %v, body = %s, want 503 with Retry-After 5", err, response, body)
	}
}

// revisions is a resolve.Resolver that knows the same answer for every repository.
type revisions struct {
	mu    sync.Mutex
	err   error
	asked []node.Question
}

func (r *revisions) Resolve(_ context.Context, questions []node.Question) ([]node.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, questions...)
	if r.err != nil {
		return nil, r.err
	}
	results := make([]node.Result, len(questions))
	for i, q := range questions {
		switch q.Revision {
		case "none":
			results[i].Err = fault.New(fault.NotFound, "no revision none")
		case "twice":
			results[i].Err = fault.New(fault.Exists, "the object ID is ambiguous")
		default:
			id := git.MustParseObjectID("0123456789012345678901234567890123456789")
			version := git.Version{Incarnation: "node", Epoch: 1, Generation: 1 << 60}
			results[i].Answer = node.Answer{ID: id, Type: git.Commit, Ref: "refs/heads/main", Version: version}
		}
	}
	return results, nil
}
