package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// call commits to a ref through the JSON API of a gateway, from the value that some client saw last. The ID of the
// commit is known before, from the same call without effect.
func (p *clusterPusher) call(refs []int) error {
	do := action{ref: refs[0], old: p.known(refs[0])}
	p.made++
	text := fmt.Sprint("call ", p.made, " of client ", p.number)
	request := map[string]any{
		"branch": fmt.Sprint("try", p.number), "create": true, "start": do.old, "dry_run": true, "message": text,
		"author":  map[string]string{"name": "C", "email": "c@example.com", "date": "1700000000 +0000"},
		"changes": []any{map[string]any{"put": map[string]string{"path": "file", "text": text}}},
	}
	gateway := p.random.IntN(len(p.gateways))
	status, id, err := p.post(gateway, request)
	if err != nil || status != http.StatusOK {
		p.fail("call without effect")
		return nil
	}
	do.new = id
	request["branch"], request["dry_run"] = refName(do.ref), false
	delete(request, "start")
	if do.old != "" {
		delete(request, "create")
		request["expected_head"] = do.old
	}
	begun := p.now()
	status, id, err = p.post(gateway, request)
	op := porcupine.Operation{ClientId: p.number, Input: do, Call: begun, Return: p.now()}
	switch {
	case err == nil && status == http.StatusOK && id != do.new:
		return fmt.Errorf("a call made commit %s, and without effect %s", id, do.new)
	case err == nil && status == http.StatusOK:
		op.Output = result{kind: done}
	case err == nil && status == http.StatusConflict:
		op.Output = result{kind: stale}
	case err == nil && status < http.StatusInternalServerError:
		op.Output = result{kind: refused}
	default:
		p.fail("call")
		op.Output, op.Return = result{kind: unknown}, 0
	}
	p.note(op)
	return nil
}

func (p *clusterPusher) post(gateway int, body any) (status int, commit string, err error) {
	return postCommit(p.url(gateway, "-/api/v1/repos/r/commits"), p.header, body)
}

// postCommit sends a request for a commit, and returns the status and the commit of the response.
func postCommit(url, header string, body any) (status int, commit string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(text)))
	if err != nil {
		return 0, "", err
	}
	name, value, _ := strings.Cut(header, ": ")
	request.Header.Set(name, value)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return response.StatusCode, "", err
	}
	var made struct {
		Commit string `json:"commit"`
	}
	err = json.Unmarshal(answer, &made)
	return response.StatusCode, made.Commit, err
}
