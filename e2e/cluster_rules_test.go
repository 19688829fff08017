package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// TestClusterRules has clients read and replace the stored rules through two gateways, while nodes of the store are
// killed and connections to it are cut. The rules are a linearizable register with compare-and-set. Tokens are valid at
// each gateway at once, and revoked at all.
func TestClusterRules(t *testing.T) {
	t.Parallel()
	c := newClusterWith(t, true)
	c.create("r")
	c.checkSharedTokens()
	changes, pause := 30, time.Second
	if testing.Short() {
		changes, pause = 8, 3*time.Second
	}
	c.setCut(true)
	h := &pushHistory{cluster: c, began: time.Now(), seen: map[string]string{}}
	stop := make(chan struct{})
	var disturbances, clients sync.WaitGroup
	kills := 0
	disturbances.Go(func() { kills = c.disturb(rand.New(rand.NewPCG(1, 0)), pause, stop) })
	for i := range 4 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)+1))
			for n := range changes {
				h.changeRules(i, n, random.IntN(len(c.gateways)), random.IntN(len(c.gateways)))
			}
		})
	}
	clients.Wait()
	close(stop)
	disturbances.Wait()
	c.setCut(false)
	counts, end := map[outcome]int{}, h.now()
	for i := range h.ops {
		op := &h.ops[i]
		if op.Return == 0 {
			op.Return = end
		}
		if !op.Input.(action).read {
			counts[op.Output.(result).kind]++
		}
	}
	t.Logf("%d kills, changes: %v, without an answer: %v", kills, counts, h.failed)
	if counts[done] == 0 {
		t.Error("no change was made")
	}
	checkLinearizable(t, h.ops)
}

// changeRules reads the rules at one gateway, and replaces them at another one. Their value is the name of the second
// rule.
func (h *pushHistory) changeRules(client, n, reader, writer int) {
	var got struct {
		Version string `json:"version"`
		Stored  struct {
			Rules []struct {
				Name string `json:"name"`
			} `json:"rules"`
		} `json:"stored"`
	}
	begun := h.now()
	status, text := h.api(reader, http.MethodGet, "rules", nil)
	back := h.now()
	if status != http.StatusOK || json.Unmarshal(text, &got) != nil {
		h.fail("read")
		return
	}
	old := ""
	if len(got.Stored.Rules) > 1 {
		old = got.Stored.Rules[1].Name
	}
	h.note(porcupine.Operation{ClientId: client, Input: action{read: true}, Call: begun, Output: result{value: old},
		Return: back})
	do := action{old: old, new: fmt.Sprintf("rule %d of client %d", n, client)}
	version := got.Version
	if version == "" {
		version = "0"
	}
	begun = h.now()
	status, text = h.api(writer, http.MethodPut, "rules", map[string]any{"expected_version": version,
		"set": map[string]any{"rules": []any{
			map[string]any{"who": []string{"tester"}, "repositories": []string{"**"}, "may": "admin"},
			map[string]any{"name": do.new, "who": []string{"x"}, "repositories": []string{"**"}, "may": "read"}}}})
	op := porcupine.Operation{ClientId: client, Input: do, Call: begun, Output: result{kind: done}, Return: h.now()}
	switch {
	case status == http.StatusOK:
	case status == http.StatusConflict:
		op.Output = result{kind: refused}
	case status != 0 && status < http.StatusInternalServerError && status != http.StatusTooManyRequests:
		h.Errorf("rules: %d %s", status, text)
	default:
		h.fail("change")
		op.Output, op.Return = result{kind: unknown}, 0
	}
	h.note(op)
}

// checkSharedTokens checks that a token is valid at both gateways at once, and refused by both after it was revoked.
func (c *cluster) checkSharedTokens() {
	c.Helper()
	var minted struct {
		Secret string              `json:"secret"`
		Token  struct{ ID string } `json:"token"`
	}
	status, text := c.api(0, http.MethodPost, "tokens", map[string]any{"name": "bot", "scope": "read",
		"lifetime_seconds": 600})
	if err := json.Unmarshal(text, &minted); status != http.StatusOK || err != nil {
		c.Fatalf("mint: %d %s %v", status, text, err)
	}
	reads := func(gateway int) error {
		_, err := clientGit(c.T, basicHeader("bot", minted.Secret), c.dir, "ls-remote", c.url(gateway, "r"))
		return err
	}
	for i := range c.gateways {
		if err := reads(i); err != nil {
			c.Fatalf("a new token at gateway %d: %v", i, err)
		}
	}
	if status, text := c.api(1, http.MethodDelete, "tokens/"+minted.Token.ID, nil); status != http.StatusOK {
		c.Fatalf("revoke: %d %s", status, text)
	}
	if reads(1) == nil {
		c.Error("a revoked token is valid at the gateway that revoked it")
	}
	begun := time.Now()
	eventually(c.T, "the other gateway refuses a revoked token", func() bool { return reads(0) != nil })
	if took := time.Since(begun); took > 3*time.Second {
		c.Errorf("a revoked token was valid for %v", took)
	}
}

// api makes a request for the API of a gateway. The status is 0 without a response.
func (c *cluster) api(gateway int, method, path string, body any) (status int, text []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var content []byte
	if body != nil {
		content, _ = json.Marshal(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url(gateway, "-/api/v1/"+path), bytes.NewReader(content))
	if err != nil {
		c.Error(err)
		return 0, nil
	}
	name, value, _ := strings.Cut(c.header, ": ")
	r.Header.Set(name, value)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil
	}
	return response.StatusCode, text
}
