package auth

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// OIDCRule is an [[auth.oidc]] table: what the identity tokens of an issuer permit.
type OIDCRule struct {
	Issuer       string            // exact value of the claim iss
	Audience     string            // exact value in the claim aud
	Claims       map[string]string // required patterns of claims
	Repositories []string          // patterns of repositories, with names of claims in braces
	May          string            // "read" or "write"
	JWKSURL      string            // of the issuer's keys; empty means that the issuer's configuration names it
	CA           string            // file with the trusted authorities; empty means those of the system
	Name         string            // claim with the caller's name; empty means a name made from the subject
	TokenFile    string            // with a Bearer token for the requests to the issuer; empty means none
}

// Check returns an Invalid error if the rule is invalid.
func (r OIDCRule) Check() error {
	_, err := parseOIDCRule(r)
	return err
}

func (r OIDCRule) keySource() keySource { return keySource{r.Issuer, r.JWKSURL, r.CA, r.TokenFile} }

// oidcRule is a parsed OIDCRule.
type oidcRule struct {
	audience     string
	claims       map[string]string // patterns as for path.Match, with their slashes replaced (replaceSlashes)
	repositories []repositoryTemplate
	operation    Operation
	name         string // see OIDCRule
}

func parseOIDCRule(from OIDCRule) (*oidcRule, error) {
	bad := func(format string, args ...any) (*oidcRule, error) {
		return nil, fault.New(fault.Invalid, format, args...)
	}
	keys := from.JWKSURL
	if keys == "" {
		keys = from.Issuer
	}
	if u, err := url.Parse(keys); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return bad("%.200q is not a URL of keys: use https://HOST/PATH as the issuer or jwks_url", keys)
	}
	if from.Issuer == "" || from.Audience == "" || len(from.Repositories) == 0 {
		return bad("issuer, audience and repositories are required")
	}
	r := &oidcRule{audience: from.Audience, name: from.Name, claims: map[string]string{}}
	var err error
	if r.operation, err = ParseOperation(from.May); err != nil || r.operation > Write {
		return bad("may = %.40q: use read or write", from.May)
	}
	for name, pattern := range from.Claims {
		if strings.ContainsAny(pattern, `[]\`) || hasControls(pattern) || pattern == "" {
			return bad("claims: invalid pattern %.80q of %q: use characters, * and ?", pattern, name)
		}
		r.claims[name] = replaceSlashes(pattern)
	}
	for _, text := range from.Repositories {
		t, err := parseRepositoryTemplate(text)
		if err != nil {
			return nil, err
		}
		if !t.hasClaim() && !slices.ContainsFunc(slices.Collect(maps.Values(from.Claims)), isRestrictive) {
			return bad("repositories: %.80q without claims is for everybody with a token of the issuer: use a claim in it, as "+
				"in HOST/{repository}, or require claims", text)
		}
		r.repositories = append(r.repositories, t)
	}
	return r, nil
}

// isRestrictive reports whether a pattern of a claim does not match every value.
func isRestrictive(pattern string) bool { return strings.Trim(pattern, "*") != "" }

// grant returns the grant of the rule for a token, or why there is none. The grant lists at least one repository,
// because an empty list would mean all.
func (r *oidcRule) grant(audience []string, values map[string]any) (*Grant, error) {
	if !slices.Contains(audience, r.audience) {
		return nil, fmt.Errorf("audience is %.200q, not %q", audience, r.audience)
	}
	for _, name := range slices.Sorted(maps.Keys(r.claims)) {
		text, ok := claimText(values, name)
		if !ok {
			return nil, fmt.Errorf("claim %q is missing or not a text", name)
		}
		if matches, err := path.Match(r.claims[name], replaceSlashes(text)); err != nil || !matches {
			return nil, fmt.Errorf("claim %q is %.200q", name, text)
		}
	}
	grant := &Grant{Operation: r.operation}
	var reason error
	for _, t := range r.repositories {
		pattern, err := t.pattern(values)
		if err != nil {
			reason = err
			continue
		}
		grant.Repositories = append(grant.Repositories, pattern)
	}
	if len(grant.Repositories) == 0 {
		return nil, reason
	}
	return grant, nil
}

// callerName returns the name that the rule gives to the owner of a token.
func (r *oidcRule) callerName(claims jwt.Claims, values map[string]any) (string, error) {
	if r.name == "" {
		return oidcName(claims.Issuer, claims.Subject), nil
	}
	name, ok := claimText(values, r.name)
	if !ok {
		return "", fmt.Errorf("claim %q, the name, is missing or not a text", r.name)
	}
	return name, CheckName(name)
}

// replaceSlashes replaces the slashes of a pattern or value, because "*" of path.Match matches no slash. A value has no
// control characters (claimText).
func replaceSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// claimText returns the value of a claim as a text. ok is false if the claim is missing, empty, an object or an array,
// or has control characters.
func claimText(values map[string]any, name string) (text string, ok bool) {
	switch v := values[name].(type) {
	case string:
		text = v
	case bool:
		text = strconv.FormatBool(v)
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	}
	return text, text != "" && !hasControls(text)
}

// repositoryTemplate is a pattern of repositories with names of claims. Texts at odd indexes are names, the others are
// literal.
type repositoryTemplate []string

func parseRepositoryTemplate(text string) (repositoryTemplate, error) {
	var t repositoryTemplate
	for rest := text; ; {
		literal, after, open := strings.Cut(rest, "{")
		t = append(t, literal)
		if !open {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed || name == "" || strings.Contains(name, "{") {
			return nil, fault.New(fault.Invalid, "repositories: %.80q: write the name of a claim as {NAME}", text)
		}
		t, rest = append(t, name), after
	}
	example := make(map[string]any)
	for i := 1; i < len(t); i += 2 {
		example[t[i]] = "x"
	}
	if _, err := t.pattern(example); err != nil {
		return nil, fault.Wrap(fault.Invalid, "repositories", err)
	}
	return t, nil
}

func (t repositoryTemplate) hasClaim() bool { return len(t) > 1 }

// pattern inserts claims. The value of a claim may be one or more whole components of a path. It never becomes a part
// of the pattern's language.
func (t repositoryTemplate) pattern(values map[string]any) (Pattern, error) {
	var b strings.Builder
	for i, part := range t {
		if i%2 == 0 {
			b.WriteString(part)
			continue
		}
		value, ok := claimText(values, part)
		if !ok || !isPathText(value) {
			return Pattern{}, fmt.Errorf("claim %q is missing or not a path: %.200q", part, value)
		}
		b.WriteString(value)
	}
	return ParsePattern(b.String())
}

// isPathText reports whether a text consists of components of a path that mean nothing but themselves in a pattern. A
// component that ends in ".git" is another name of a repository.
func isPathText(s string) bool {
	if strings.ContainsAny(s, `*?[]\{}`) {
		return false
	}
	for c := range strings.SplitSeq(s, "/") {
		if c == "" || c == "." || c == ".." || strings.HasSuffix(strings.ToLower(c), ".git") {
			return false
		}
	}
	return true
}
