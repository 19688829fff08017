package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/resolve"
)

const (
	resolvePath  = "/-/api/v1/resolve"
	maxQuestions = 1000
	maxQuestion  = 1 << 20 // bytes of questions that are sent
	resolveLimit = 30 * time.Second
)

// ResolveQuestion asks what a revision names.
type ResolveQuestion struct {
	Repository string `json:"repo"`
	Revision   string `json:"rev"`
}

// ResolveQuestions are several of them, as they are sent.
type ResolveQuestions struct {
	Questions []ResolveQuestion `json:"questions"`
}

// Resolved is the answer to a question. Its numbers may be greater than JavaScript's.
type Resolved struct {
	ResolveQuestion
	ID          string         `json:"oid,omitempty"`
	Type        string         `json:"type,omitempty"`
	Ref         string         `json:"ref,omitempty"`
	Incarnation string         `json:"incarnation,omitempty"`
	Epoch       uint64         `json:"epoch,omitempty,string"`
	Generation  uint64         `json:"generation,omitempty,string"`
	Error       *ResolvedError `json:"error,omitempty"`
}

// ResolvedError is why there is no answer.
type ResolvedError struct {
	Kind    string `json:"kind"` // not_found, exists (an abbreviation that may be several), invalid, unauthenticated, ...
	Message string `json:"message"`
}

// ResolvedAll are the answers to several questions, in their order.
type ResolvedAll struct {
	Results []Resolved `json:"results"`
}

// resolve answers GET /-/api/v1/resolve?repo=PATH&rev=REVISION, of which there may be several, and POST with a list of questions.
func (e *exchange) resolve() {
	e.op = opResolve
	questions, single, err := e.questions()
	if err == nil {
		err = e.identify()
	}
	if err != nil {
		if e.status == 0 {
			e.fail(err)
		}
		return
	}
	e.keepPrivate()
	seat, err := e.Lanes.Small.Enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	seat.Stay()
	defer seat.Leave()
	e.know()
	e.running.At(inflight.Working)
	results, err := e.answers(questions)
	if err != nil {
		e.fail(err)
		return
	}
	if login := needLogin(results); login != nil {
		e.fail(login)
		return
	}
	all := ResolvedAll{Results: make([]Resolved, len(questions))}
	for i, q := range questions {
		all.Results[i] = answerTo(q, results[i])
		if e.err == nil && isServerFault(results[i].Err) { // the answer tells of it, and is whole
			e.err = results[i].Err
		}
	}
	if !single {
		e.json(http.StatusOK, all)
		return
	}
	status := http.StatusOK
	if err := results[0].Err; err != nil {
		e.err = err
		status = e.advise(err)
	}
	e.json(status, all.Results[0])
}

// isServerFault reports whether an error is one that the caller cannot do anything about.
func isServerFault(err error) bool {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Corrupt, fault.Unavailable, fault.Exhausted, fault.Deadline:
		return err != nil
	}
	return false
}

// needLogin is the error of a request of which no part can be answered before the caller says who it is.
func needLogin(results []resolve.Result) (err error) {
	for _, r := range results {
		if err = r.Err; !fault.Is(err, fault.Unauthenticated) {
			return nil
		}
	}
	return err
}

func answerTo(q ResolveQuestion, r resolve.Result) Resolved {
	if r.Err != nil {
		return Resolved{ResolveQuestion: q, Error: &ResolvedError{Kind: fault.KindOf(r.Err).String(), Message: fault.Message(r.Err)}}
	}
	v := r.Version
	return Resolved{ResolveQuestion: q, ID: r.ID.String(), Type: r.Type.String(), Ref: r.Ref,
		Incarnation: v.Incarnation, Epoch: v.Epoch, Generation: v.Generation}
}

// answers finds the answers. Who may not know of a repository is told what a fetch of it is told, and it takes as long.
func (e *exchange) answers(questions []ResolveQuestion) ([]resolve.Result, error) {
	ctx, cancel := context.WithTimeout(e.ctx, resolveLimit)
	defer cancel()
	places := make(map[string]*place, 1)
	results := make([]resolve.Result, len(questions))
	asked, at := make([]resolve.Question, 0, len(questions)), make([]int, 0, len(questions))
	for i, q := range questions {
		if places[q.Repository] == nil {
			places[q.Repository] = e.place(q.Repository)
		}
		p := places[q.Repository]
		if p.err != nil {
			results[i].Err = p.err
			continue
		}
		path := p.repo
		if p.hidden {
			path = absent{repo: p.repo}.path()
		}
		asked, at = append(asked, resolve.Question{Repository: path, Revision: q.Revision}), append(at, i)
	}
	if len(places) > 1 {
		e.repo = git.RepoPath{} // of the log's line
	}
	if len(asked) == 0 {
		return results, nil
	}
	found, err := e.Resolver.Resolve(ctx, asked)
	if err != nil {
		return nil, err
	}
	for i, result := range found {
		if p := places[questions[at[i]].Repository]; p.hidden {
			_, result.Err = absent{repo: p.repo}.hide(e.outcome, result.Err)
		}
		results[at[i]] = result
	}
	return results, nil
}

// place is a repository as this caller may see it.
type place struct {
	repo   git.RepoPath
	hidden bool  // it may not be known of
	err    error // it may not be read
}

func (e *exchange) place(name string) *place {
	repo, err := git.ParseRepoPath(name)
	switch {
	case name == "":
		return &place{err: fault.New(fault.Invalid, "which repository? as in "+resolvePath+"?repo=team/app&rev=main")}
	case err != nil:
		return &place{err: fault.Wrap(fault.NotFound, "no such repository: "+err.Error(), err)}
	case auth.HoldsToken(name):
		return &place{err: fault.New(fault.NotFound, "no such repository: there is a token in its path; revoke it, and give the new one as the password")}
	}
	e.repo, e.hidden = repo, false
	err = e.allow(auth.Read)
	return &place{repo: repo, hidden: e.hidden, err: err}
}

// questions reads what is asked. single: it is one question, and is answered by itself. The error may have been answered already.
func (e *exchange) questions() (questions []ResolveQuestion, single bool, err error) {
	switch e.r.Method {
	case http.MethodGet, http.MethodHead:
		query, err := url.ParseQuery(e.r.URL.RawQuery)
		if err != nil {
			return nil, false, fault.New(fault.Invalid, "bad query")
		}
		questions, err = parseQuestions(query)
		return questions, len(questions) == 1, err
	case http.MethodPost:
		body, err := e.body() // before the lane: clients that send slowly must not fill it
		if err != nil {
			return nil, false, err
		}
		defer body.Close()
		questions, err = readQuestions(e.r.Header.Get("Content-Type"), body)
		return questions, false, err
	}
	e.w.Header().Set("Allow", "GET, HEAD, POST")
	e.refuse(http.StatusMethodNotAllowed, "use GET or POST")
	return nil, false, e.err
}

// parseQuestions reads questions from a URL: several revisions of one repository, or as many repositories as revisions, in pairs.
func parseQuestions(query url.Values) ([]ResolveQuestion, error) {
	for key := range query {
		if key != "repo" && key != "rev" {
			return nil, fault.New(fault.Invalid, "there is no parameter %.20q; there are repo and rev", key)
		}
	}
	repositories, revisions := query["repo"], query["rev"]
	if len(revisions) == 0 {
		revisions = make([]string, len(repositories)) // HEAD
	}
	if len(repositories) == 0 || len(repositories) > 1 && len(repositories) != len(revisions) {
		return nil, fault.New(fault.Invalid,
			"give one repo and any number of rev, or as many of one as of the other, as in %s?repo=team/app&rev=main", resolvePath)
	}
	if len(revisions) > maxQuestions {
		return nil, errManyQuestions(len(revisions))
	}
	questions := make([]ResolveQuestion, len(revisions))
	for i, revision := range revisions {
		questions[i] = ResolveQuestion{Repository: repositories[min(i, len(repositories)-1)], Revision: revision}
	}
	return questions, nil
}

// readQuestions reads questions as JSON.
func readQuestions(contentType string, body io.Reader) ([]ResolveQuestion, error) {
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/json" {
		return nil, fault.New(fault.Invalid, "questions are sent as application/json")
	}
	limited := &io.LimitedReader{R: body, N: maxQuestion + 1}
	var sent ResolveQuestions
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	err := d.Decode(&sent)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("something stands behind it")
		}
	}
	switch {
	case limited.N == 0:
		return nil, fault.New(fault.Invalid, "questions of more than %d bytes", maxQuestion)
	case fault.KindOf(err) != fault.Internal: // of the body
		return nil, err
	case err != nil:
		return nil, fault.Wrap(fault.Invalid, `the questions are no JSON such as {"questions": [{"repo": "team/app", "rev": "main"}]}: `+err.Error(), err)
	case len(sent.Questions) > maxQuestions:
		return nil, errManyQuestions(len(sent.Questions))
	}
	return sent.Questions, nil
}

func errManyQuestions(n int) error {
	return fault.New(fault.Invalid, "%d questions are more than the %d that can be asked at once", n, maxQuestions)
}
