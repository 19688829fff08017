package githttp_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// originOf is an origin of the repositories below "forge". It knows the user alice, and permits her forge/app.
type originOf struct{}

func (originOf) FoldsCase(git.RepoPath) bool { return false }

func (originOf) Hosts() []string { return []string{"forge"} }

func (originOf) Find(repo git.RepoPath) *node.Origin {
	if !strings.HasPrefix(repo.String(), "forge/") {
		return nil
	}
	return &node.Origin{Host: "forge", URL: "https://origin/",
		Probe: func(_ context.Context, _ protocol.Service, authorization node.Secret, _ string) error {
			switch {
			case repo.String() == "forge/public":
				return nil
			case authorization.Reveal() != "Bearer alice":
				return fault.New(fault.Unauthenticated, "wrong credential")
			case repo.String() == "forge/app":
				return nil
			}
			return fault.New(fault.NotFound, "no such repository")
		}}
}

// credentialNode is a node with all repositories that notes the credentials of sessions.
type credentialNode struct {
	fakeNode
	got []string
}

func (n *credentialNode) Advertise(ctx context.Context, repo git.RepoPath, s node.Session,
	r node.ResponseWriter) (node.Outcome, error) {
	n.got = append(n.got, s.Authorization.Reveal())
	if strings.HasPrefix(repo.String(), ".packhorse/") {
		return node.Outcome{}, fault.New(fault.NotFound, "no such repository")
	}
	return n.fakeNode.Advertise(ctx, repo, s, r)
}

// TestCredentialsReachNodes checks which sessions have the caller's credential: those for a repository for which the
// origin has accepted it, if nodes need it.
func TestCredentialsReachNodes(t *testing.T) {
	t.Parallel()
	rules, err := auth.ParseRules(nil, []auth.RuleSpec{{Who: []string{"anonymous"}, Repositories: []string{"own"},
		May: "read"}}, func(int) string { return "rule" })
	if err != nil {
		t.Fatal(err)
	}
	metrics, log := auth.NewMetrics(nil), slog.New(slog.DiscardHandler)
	a := auth.New(auth.Options{Metrics: metrics, Sources: auth.NewSources(metrics, log), Log: log,
		Rules:   rules,
		Origins: auth.NewOrigins(auth.OriginOptions{Probers: []auth.Prober{originOf{}}, TTL: time.Minute, Metrics: metrics})})
	t.Cleanup(func() { a.Close() })
	n := &credentialNode{fakeNode: fakeNode{advertise: advertise}}
	s := serve(t, n, options{auth: a})
	s.handler.Rename = func(repo git.RepoPath) git.RepoPath {
		folded, err := git.ParseRepoPath(strings.ToLower(repo.String()))
		if err != nil {
			t.Error(err)
		}
		return folded
	}
	for _, send := range []bool{true, false} {
		s.handler.SendCredentials = send
		for _, test := range []struct {
			path, authorization string
			sent                bool
		}{
			{"forge/app", "Bearer alice", true},
			{"Forge/App", "Bearer alice", true},
			{"forge/public", "Bearer alice", true},
			{"forge/public", "", false},
			{"own", "", false},
			{"forge/app", "Bearer bob", false},
			{"forge/missing", "Bearer alice", false}, // the node is asked for a repository that does not exist
			{"own", "Bearer alice", false},
		} {
			n.got = nil
			r, err := http.NewRequest(http.MethodGet, "http://"+s.addr+"/"+test.path+"/info/refs?service=git-upload-pack", nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.authorization != "" {
				r.Header.Set("Authorization", test.authorization)
			}
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			want := ""
			if test.sent && send {
				want = test.authorization
			}
			if slices.ContainsFunc(n.got, func(c string) bool { return c != want }) || test.sent && len(n.got) == 0 {
				t.Errorf("%s with %q, SendCredentials %v: sessions with %q, want %q", test.path, test.authorization, send,
					n.got, want)
			}
		}
	}
	if text := s.log.String(); strings.Contains(text, "Bearer") || !strings.Contains(text, "user=origin-") {
		t.Errorf("log has a credential, or no caller of the origin: %s", text)
	}
}
