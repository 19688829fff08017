package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Commit is a commit in the format of GitHub.
type Commit struct {
	ID        string       `json:"id"`
	Tree      string       `json:"tree_id"`
	Distinct  bool         `json:"distinct"`
	Message   string       `json:"message"`
	Timestamp string       `json:"timestamp"` // RFC 3339
	URL       string       `json:"url"`
	Author    GitHubPerson `json:"author"`
	Committer GitHubPerson `json:"committer"`
	Added     []string     `json:"added"` // always empty: see docs/how-to/webhooks.md
	Removed   []string     `json:"removed"`
	Modified  []string     `json:"modified"`
}

// GitHubPerson is a person in the format of GitHub.
type GitHubPerson struct {
	Name     string `json:"name"`
	Email    string `json:"email"`
	Username string `json:"username,omitempty"`
	Login    string `json:"login,omitempty"`
}

type githubRepository struct {
	Name          string       `json:"name"`
	FullName      string       `json:"full_name"`
	Owner         GitHubPerson `json:"owner"`
	Private       bool         `json:"private"`
	URL           string       `json:"url"`
	HTMLURL       string       `json:"html_url"`
	CloneURL      string       `json:"clone_url"`
	GitURL        string       `json:"git_url"`
	SSHURL        string       `json:"ssh_url"`
	DefaultBranch string       `json:"default_branch"`
}

// githubEvent has the fields of the events push, create, delete and repository.
type githubEvent struct {
	Ref        string           `json:"ref,omitempty"`
	RefType    string           `json:"ref_type,omitempty"` // of create and delete
	Action     string           `json:"action,omitempty"`   // of repository
	Changes    map[string]any   `json:"changes,omitempty"`  // of repository, if it was renamed
	Repository githubRepository `json:"repository"`
	Sender     GitHubPerson     `json:"sender"`
	*githubPush
}

// githubPush has the further fields of the event push.
type githubPush struct {
	Before     string       `json:"before"`
	After      string       `json:"after"`
	Created    bool         `json:"created"`
	Deleted    bool         `json:"deleted"`
	Forced     bool         `json:"forced"`
	BaseRef    *string      `json:"base_ref"`
	Compare    string       `json:"compare"`
	Commits    []Commit     `json:"commits"`
	HeadCommit *Commit      `json:"head_commit"`
	Pusher     GitHubPerson `json:"pusher"`
}

// maxGitHubCommits is the maximum number of commits of a push.
const maxGitHubCommits = 20

// githubRequests are requests about an event in the format of GitHub.
type githubRequests struct {
	id   string // of the event
	body githubEvent
	list []request
	err  error
}

// add adds a request with the present body.
func (r *githubRequests) add(kind string) {
	text, err := json.Marshal(r.body)
	r.list = append(r.list, request{kind, fmt.Sprintf("%s-%d", r.id, len(r.list)), append(text, '\n')})
	r.err = cmp.Or(r.err, err)
}

// githubRequests returns the requests of an event in the format of GitHub: one for each ref, and another one for each
// that was created or deleted.
func (h *Hooks) githubRequests(ctx context.Context, t *Target, e *event.Event, p *receivepack.Push) ([]request, error) {
	name := p.Repo.String()
	base := t.BaseURL + "/" + name
	owner := path.Dir(name)
	if owner == "." {
		owner = name
	}
	r := githubRequests{id: e.ID, body: githubEvent{Sender: GitHubPerson{Login: p.Pusher.Name, Name: p.Pusher.Name},
		Repository: githubRepository{Name: path.Base(name), FullName: name, Owner: GitHubPerson{Name: owner, Login: owner},
			URL: base, HTMLURL: base, CloneURL: base + ".git", GitURL: base + ".git", SSHURL: base + ".git",
			DefaultBranch: "main", Private: true}}}
	if e.Kind != event.Push {
		r.body.Action = map[event.Kind]string{event.Create: "created", event.Delete: "deleted", event.Rename: "renamed",
			event.Configure: "edited"}[e.Kind]
		if e.Kind == event.Rename {
			r.body.Changes = map[string]any{"repository": map[string]any{"name": map[string]any{
				"from": path.Base(string(e.Former))}}}
		}
		r.add("repository")
		return r.list, r.err
	}
	if h.o.Head != nil {
		if head, err := h.o.Head(ctx, p.Repo); err == nil && head != "" {
			r.body.Repository.DefaultBranch = head
		}
	}
	for _, u := range p.Updates {
		short, isBranch := strings.CutPrefix(string(u.Ref), "refs/heads/")
		kind := "branch"
		if !isBranch {
			var isTag bool
			if short, isTag = strings.CutPrefix(short, "refs/tags/"); !isTag {
				continue // GitHub has no events of other refs
			}
			kind = "tag"
		}
		push, err := h.githubPush(ctx, p, u, base)
		if err != nil {
			return nil, err
		}
		r.body.Ref, r.body.RefType, r.body.githubPush = string(u.Ref), "", push
		r.add("push")
		if push.Created || push.Deleted {
			r.body.Ref, r.body.RefType, r.body.githubPush = short, kind, nil
			r.add(map[bool]string{true: "create", false: "delete"}[push.Created])
		}
	}
	return r.list, r.err
}

// githubPush describes an update in the format of GitHub. base is the URL of the repository.
func (h *Hooks) githubPush(ctx context.Context, p *receivepack.Push, u receivepack.Update, base string) (*githubPush,
	error) {
	digits := max(u.Old.Format().HexSize(), u.New.Format().HexSize())
	push := &githubPush{Before: hexID(u.Old, digits), After: hexID(u.New, digits),
		Created: u.Kind == receivepack.Created, Deleted: u.Kind == receivepack.Deleted, Forced: u.Kind == receivepack.Forced,
		Compare: base + "/compare/" + hexID(u.Old, digits) + "..." + hexID(u.New, digits), Commits: []Commit{},
		Pusher: GitHubPerson{Name: p.Pusher.Name}}
	if h.o.Commits == nil || push.Deleted {
		return push, nil
	}
	commits, err := h.o.Commits(ctx, p.Repo, u, maxGitHubCommits)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	for _, c := range commits { // those of a ref that was changed again may be gone
		c.URL, c.Distinct, c.Added, c.Removed, c.Modified = base+"/commit/"+c.ID, true, []string{}, []string{}, []string{}
		push.Commits = append(push.Commits, c)
	}
	if n := len(push.Commits); n > 0 {
		push.HeadCommit = &push.Commits[n-1]
	}
	return push, nil
}

// GitHubTime returns a time in the format of GitHub.
func GitHubTime(seconds int64, offset int32) string {
	zone := time.FixedZone("", int(offset)*60)
	return time.Unix(seconds, 0).In(zone).Format(time.RFC3339)
}
