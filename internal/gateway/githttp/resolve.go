package githttp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

const (
	resolvePath     = "/-/api/v1/resolve"
	maxQuestions    = 1000
	maxQuestionSize = 1 << 20 // bytes of a document of questions
	resolveTimeout  = 30 * time.Second
)

// ResolveRequest is the document of a request that asks several questions.
type ResolveRequest struct {
	Questions []gateway.RevisionQuestion `json:"questions"`
}

// ResolveResult is the answer to a question. Its numbers are strings in JSON because JavaScript's are too small.
type ResolveResult struct {
	gateway.RevisionQuestion
	ID          string        `json:"oid,omitempty"`
	Type        string        `json:"type,omitempty"`
	Ref         string        `json:"ref,omitempty"`
	Incarnation string        `json:"incarnation,omitempty"`
	Epoch       uint64        `json:"epoch,omitempty,string"`
	Generation  uint64        `json:"generation,omitempty,string"`
	Error       *ResolveError `json:"error,omitempty"`
}

// ResolveError is why a question has no answer.
type ResolveError struct {
	Kind    string `json:"kind"` // not_found, exists (an ambiguous abbreviation), invalid, unauthenticated, ...
	Message string `json:"message"`
}

// ResolveResponse is the document of the answers to several questions, in their order.
type ResolveResponse struct {
	Results []ResolveResult `json:"results"`
}

// resolve answers GET /-/api/v1/resolve?repo=PATH&rev=REVISION, with one or more questions, and POST with a list of
// questions.
func (q *request) resolve() {
	q.Op = gateway.Resolve
	questions, single, err := q.questions()
	if err == nil {
		err = q.identify()
	}
	if err != nil {
		if q.Status == 0 {
			q.fail(err)
		}
		return
	}
	q.keepPrivate()
	seat, err := q.Enter()
	if err != nil {
		q.fail(err)
		return
	}
	defer seat.Leave()
	q.Publish()
	q.At(inflight.Working)
	ctx, cancel := context.WithTimeout(q.Ctx, resolveTimeout)
	defer cancel()
	results, err := q.Resolve(ctx, questions)
	if err != nil {
		q.fail(err)
		return
	}
	if err := unauthenticated(results); err != nil {
		q.fail(err)
		return
	}
	response := ResolveResponse{Results: make([]ResolveResult, len(questions))}
	for i, question := range questions {
		response.Results[i] = newResolveResult(question, results[i])
		if q.Err == nil && isServerFault(results[i].Err) { // the response contains the error, and is complete
			q.Err = results[i].Err
		}
	}
	if !single {
		q.json(http.StatusOK, typeJSON, response)
		return
	}
	status := http.StatusOK
	if err := results[0].Err; err != nil {
		q.Err = err
		status = q.advise(err)
	}
	q.json(status, typeJSON, response.Results[0])
}

// isServerFault reports whether the caller can do nothing about an error.
func isServerFault(err error) bool {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Corrupt, fault.Unavailable, fault.Exhausted, fault.Deadline:
		return err != nil
	}
	return false
}

// unauthenticated returns an error if no question can be answered before the caller authenticates.
func unauthenticated(results []node.Result) (err error) {
	for _, r := range results {
		if err = r.Err; !fault.Is(err, fault.Unauthenticated) {
			return nil
		}
	}
	return err
}

func newResolveResult(question gateway.RevisionQuestion, r node.Result) ResolveResult {
	if r.Err != nil {
		return ResolveResult{RevisionQuestion: question, Error: &ResolveError{Kind: fault.KindOf(r.Err).String(),
			Message: fault.Message(r.Err)}}
	}
	v := r.Version
	return ResolveResult{RevisionQuestion: question, ID: r.ID.String(), Type: r.Type.String(), Ref: r.Ref,
		Incarnation: v.Incarnation, Epoch: v.Epoch, Generation: v.Generation}
}

// questions reads the questions of a request. single reports whether the response is the one answer, and not a list. If
// the error was sent to the client already, Status is set.
func (q *request) questions() (questions []gateway.RevisionQuestion, single bool, err error) {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		query, err := url.ParseQuery(q.r.URL.RawQuery)
		if err != nil {
			return nil, false, fault.New(fault.Invalid, "bad query")
		}
		questions, err = parseQuestions(query)
		return questions, len(questions) == 1, err
	case http.MethodPost:
		body, err := q.readBody()
		if err != nil {
			return nil, false, err
		}
		defer body.Close()
		questions, err = readQuestions(q.r.Header.Get("Content-Type"), body)
		return questions, false, err
	}
	q.w.Header().Set("Allow", "GET, HEAD, POST")
	q.refuse(http.StatusMethodNotAllowed, "use GET or POST")
	return nil, false, q.Err
}

// parseQuestions parses the questions in a URL: several revisions of one repository, or pairs of a repository and a
// revision.
func parseQuestions(query url.Values) ([]gateway.RevisionQuestion, error) {
	for key := range query {
		if key != "repo" && key != "rev" {
			return nil, fault.New(fault.Invalid, "unknown parameter %.20q: use repo and rev", key)
		}
	}
	repositories, revisions := query["repo"], query["rev"]
	if len(revisions) == 0 {
		revisions = make([]string, len(repositories)) // HEAD
	}
	if len(repositories) == 0 || len(repositories) > 1 && len(repositories) != len(revisions) {
		return nil, fault.New(fault.Invalid,
			"use one repo and any number of rev, or as many rev as repo, as in %s?repo=team/app&rev=main", resolvePath)
	}
	if len(revisions) > maxQuestions {
		return nil, errTooManyQuestions(len(revisions))
	}
	questions := make([]gateway.RevisionQuestion, len(revisions))
	for i, revision := range revisions {
		questions[i] = gateway.RevisionQuestion{Repository: repositories[min(i, len(repositories)-1)],
			Revision: revision}
	}
	return questions, nil
}

// readQuestions reads a ResolveRequest.
func readQuestions(contentType string, body io.Reader) ([]gateway.RevisionQuestion, error) {
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/json" {
		return nil, fault.New(fault.Invalid, "bad content type: send questions as application/json")
	}
	limited := &io.LimitedReader{R: body, N: maxQuestionSize + 1}
	var sent ResolveRequest
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	err := d.Decode(&sent)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("data after the document")
		}
	}
	switch {
	case limited.N == 0:
		return nil, fault.New(fault.Invalid, "the questions have more than %d bytes", maxQuestionSize)
	case fault.KindOf(err) != fault.Internal: // of the body
		return nil, err
	case err != nil:
		return nil, fault.Wrap(fault.Invalid,
			`the questions are not JSON like {"questions": [{"repo": "team/app", "rev": "main"}]}: `+err.Error(), err)
	case len(sent.Questions) > maxQuestions:
		return nil, errTooManyQuestions(len(sent.Questions))
	}
	return sent.Questions, nil
}

func errTooManyQuestions(n int) error {
	return fault.New(fault.Invalid, "%d questions: at most %d can be asked at once", n, maxQuestions)
}
