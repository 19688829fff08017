package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// TestClusterRules has clients read and replace the stored rules and the settings of a repository through two gateways.
// Meanwhile nodes of the store are killed and connections to it are cut. Both are linearizable registers with
// compare-and-set. Before that, it checks without disturbances that gateways agree at once.
//
// PACKHORSE_CHANGES is the number of changes of each client, and PACKHORSE_SEED the seed of the random numbers.
func TestClusterRules(t *testing.T) {
	t.Parallel()
	c := newClusterWith(t, true)
	c.create("r")
	c.checkSharedTokens()
	c.checkAgreement()
	seed, changes, pause := seedOr(1), 30, time.Second
	if testing.Short() {
		changes, pause = 8, 3*time.Second
	}
	if n, err := strconv.Atoi(os.Getenv("PACKHORSE_CHANGES")); err == nil {
		changes = n
	}
	h := &pushHistory{cluster: c, began: time.Now(), seen: map[string]string{}}
	for register := range 2 {
		begun := h.now()
		value, _, _ := h.readAccess(register, 0)
		h.note(porcupine.Operation{Input: action{ref: register, new: value}, Call: begun, Output: result{kind: done},
			Return: h.now()})
	}
	c.setCut(true)
	stop := make(chan struct{})
	var disturbances, clients sync.WaitGroup
	kills := 0
	disturbances.Go(func() { kills = c.disturb(rand.New(rand.NewPCG(seed, 0)), pause, stop) })
	for i := range 4 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)+1))
			for n := range changes {
				h.changeAccess(i, n, random.IntN(2), random.IntN(len(c.gateways)), random.IntN(len(c.gateways)))
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

// Registers of changeAccess: the name of the second rule, and the description of the repository.
const (
	rulesRegister = iota
	settingsRegister
)

// readAccess reads a register at a gateway, with the version that a change of it expects.
func (h *pushHistory) readAccess(register, gateway int) (value, version string, ok bool) {
	var got struct {
		Version string `json:"version"`
		Stored  struct {
			Rules []struct {
				Name string `json:"name"`
			} `json:"rules"`
		} `json:"stored"`
		Repository struct {
			Version  string `json:"settings_version"`
			Settings struct {
				Description string `json:"description"`
			} `json:"settings"`
		} `json:"repository"`
	}
	status, text := h.api(gateway, http.MethodGet, []string{"rules", "repos/r"}[register], nil)
	if status != http.StatusOK || json.Unmarshal(text, &got) != nil {
		return "", "", false
	}
	if register == settingsRegister {
		return got.Repository.Settings.Description, got.Repository.Version, true
	}
	if len(got.Stored.Rules) > 1 {
		value = got.Stored.Rules[1].Name
	}
	return value, cmp.Or(got.Version, "0"), true
}

// writeAccess changes a register at a gateway, if it has the version.
func (h *pushHistory) writeAccess(register, gateway int, value, version string) (status int, text []byte) {
	if register == settingsRegister {
		return h.api(gateway, http.MethodPatch, "repos/r", map[string]any{"expected": version,
			"settings": map[string]any{"description": value}})
	}
	return h.api(gateway, http.MethodPut, "rules", map[string]any{"expected_version": version,
		"set": map[string]any{"rules": []any{
			map[string]any{"who": []string{"tester"}, "repositories": []string{"**"}, "may": "admin"},
			map[string]any{"name": value, "who": []string{"x"}, "repositories": []string{"**"}, "may": "read"}}}})
}

// changeAccess reads a register at one gateway, and changes it at another one.
func (h *pushHistory) changeAccess(client, n, register, reader, writer int) {
	begun := h.now()
	old, version, ok := h.readAccess(register, reader)
	back := h.now()
	if !ok {
		h.fail("read")
		return
	}
	h.note(porcupine.Operation{ClientId: client, Input: action{ref: register, read: true}, Call: begun,
		Output: result{value: old}, Return: back})
	do := action{ref: register, old: old, new: fmt.Sprintf("change %d of client %d", n, client)}
	begun = h.now()
	status, text := h.writeAccess(register, writer, do.new, version)
	op := porcupine.Operation{ClientId: client, Input: do, Call: begun, Output: result{kind: done}, Return: h.now()}
	switch {
	case status == http.StatusOK:
	case status == http.StatusConflict:
		op.Output = result{kind: refused}
	case status != 0 && status < http.StatusInternalServerError && status != http.StatusTooManyRequests:
		h.Errorf("register %d: %d %s", register, status, text)
	default:
		h.fail("change")
		op.Output, op.Return = result{kind: unknown}, 0
	}
	h.note(op)
}

// checkAgreement changes rules, tokens, settings, repositories and refs at one gateway. The other one shows each change
// once there is a response.
func (c *cluster) checkAgreement() {
	c.Helper()
	h := &pushHistory{cluster: c}
	shows := func(gateway int, path, text string, want bool) {
		c.Helper()
		status, got := c.api(gateway, http.MethodGet, path, nil)
		if status != http.StatusOK || strings.Contains(string(got), text) != want {
			c.Errorf("gateway %d, %s: %d %s\nwant %q: %v", gateway, path, status, got, text, want)
		}
	}
	does := func(gateway int, method, path string, body any) {
		c.Helper()
		if status, text := c.api(gateway, method, path, body); status != http.StatusOK {
			c.Errorf("gateway %d, %s %s: %d %s", gateway, method, path, status, text)
		}
	}
	for i := range 6 {
		one, other := i%2, (i+1)%2
		name := fmt.Sprint("agreed", i)
		for register := range 2 {
			_, version, _ := h.readAccess(register, other)
			if status, text := h.writeAccess(register, one, name, version); status != http.StatusOK {
				c.Errorf("gateway %d, register %d: %d %s", one, register, status, text)
			}
			if value, _, _ := h.readAccess(register, other); value != name {
				c.Errorf("gateway %d, register %d: %q, want %q", other, register, value, name)
			}
		}
		shows(other, "repos?details&prefix=r", name, true)
		does(one, http.MethodPost, "tokens", map[string]any{"name": name, "scope": "read", "lifetime_seconds": 600})
		shows(other, "tokens", `"name":"`+name+`"`, true)
		does(other, http.MethodDelete, "tokens/"+name, nil)
		shows(one, "tokens", `"name":"`+name+`"`, false)
		does(one, http.MethodPost, "repos", map[string]any{"repository": "made/" + name})
		shows(other, "repos?prefix=made/", name, true)
		does(one, http.MethodPost, "repos/made/"+name+"/commits", map[string]any{"branch": name, "create": true,
			"message": name, "changes": []any{map[string]any{"put": map[string]any{"path": "a", "text": name}}}})
		shows(other, "repos/made/"+name+"/branches", "refs/heads/"+name, true)
		shows(other, "events?limit=1000", "refs/heads/"+name, true)
		does(other, http.MethodDelete, "repos/made/"+name, nil)
		shows(one, "repos?prefix=made/", name, false)
		if status, text := c.api(one, http.MethodGet, "repos/made/"+name, nil); status != http.StatusNotFound {
			c.Errorf("gateway %d, a deleted repository: %d %s", one, status, text)
		}
	}
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
