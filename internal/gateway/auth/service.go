package auth

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Service answers the calls of TokenService and RuleService. It is safe for concurrent use.
type Service struct {
	Access *Access // nil: the calls are refused
	Auth   *Auth   // decides about tests, and has the caches; nil on a storage node

	Log *slog.Logger
	by  string // the caller; "": of the control API

	mayStay func([]Rule) bool // reports whether the caller may still call with other rules; nil: it always may
}

// For returns the service for a caller of a gateway. The error is Denied unless the caller administers the server.
func (s *Service) For(ctx context.Context, id Identity) (*Service, error) {
	if err := s.Auth.refresh(ctx); err != nil {
		return nil, err
	}
	if !administers(*s.Auth.rules.Load(), id) {
		return nil, fault.New(fault.Denied, "%s may not manage tokens and rules: that needs a rule with may = \"admin\" for "+
			"\"**\", and a credential without limits", id.Name)
	}
	return &Service{Access: s.Access, Auth: s.Auth, Log: s.Log, by: id.Name, mayStay: func(stored []Rule) bool {
		return administers(slices.Concat(s.Auth.parts.configuredRules(), stored), id)
	}}, nil
}

func (p *ruleParts) configuredRules() []Rule {
	p.Lock()
	defer p.Unlock()
	return p.configured
}

// administers reports whether a caller administers all repositories. Rules for some of them do not matter. Without
// rules only a token does: a hook gives scopes to its users, and decides itself about repositories.
func administers(rules []Rule, id Identity) bool {
	if id.Anonymous() || id.By == ByOrigin || id.Grant != nil &&
		(id.Grant.Operation != Admin || len(id.Grant.Repositories) > 0 || len(id.Grant.Refs) > 0) {
		return false
	}
	every := target{components: []string{"**"}, folded: []string{"**"}}
	r := firstRule(rules, id, every, func(r *Rule) bool {
		return r.refs == nil && slices.ContainsFunc(r.repositories, func(p Pattern) bool { return p.String() == "**" })
	})
	return r != nil && r.permits > int(Admin) || len(rules) == 0 && id.By == ByToken
}

// Call makes the call whose request is m.
func (s *Service) Call(ctx context.Context, m proto.Message) (proto.Message, error) {
	switch m := m.(type) {
	case *packhorsev1.MintRequest:
		return call(ctx, m, s.Mint)
	case *packhorsev1.TokenServiceListRequest:
		return call(ctx, m, s.List)
	case *packhorsev1.RevokeRequest:
		return call(ctx, m, s.Revoke)
	case *packhorsev1.RuleServiceGetRequest:
		return call(ctx, m, s.Get)
	case *packhorsev1.RuleServiceSetRequest:
		return call(ctx, m, s.Set)
	case *packhorsev1.RuleServiceTestRequest:
		return call(ctx, m, s.Test)
	case *packhorsev1.ForgetRequest:
		return call(ctx, m, s.Forget)
	}
	return nil, fault.New(fault.Internal, "no call has the request %T", m)
}

func call[Q, R any](ctx context.Context, m *Q, do func(context.Context, *connect.Request[Q]) (
	*connect.Response[R], error)) (proto.Message, error) {
	r, err := do(ctx, connect.NewRequest(m))
	if err != nil {
		return nil, err
	}
	return any(r.Msg).(proto.Message), nil
}

// note logs a change that was made.
func (s *Service) note(err error, change string) {
	if err == nil && s.Log != nil {
		s.Log.Info("changed tokens or rules", "change", change, "user", s.by)
	}
}

func (s *Service) access() (*Access, error) {
	if s.Access == nil {
		return nil, fault.New(fault.Precondition, "this node has no tokens and rules: set auth.shared, or ask a gateway")
	}
	return s.Access, nil
}

// minLifetime is the minimum lifetime of a token.
const minLifetime = time.Minute

// Mint implements TokenService.
func (s *Service) Mint(ctx context.Context, r *connect.Request[packhorsev1.MintRequest]) (
	*connect.Response[packhorsev1.MintResponse], error) {
	m := r.Msg
	a, err := s.access()
	if err != nil {
		return nil, err
	}
	request := TokenRequest{Name: m.GetName(), Repositories: m.GetRepositories(), Refs: m.GetRefs()}
	if m.GetScope() != "" {
		if request.Scope, err = ParseOperation(m.GetScope()); err != nil {
			return nil, fault.InField("scope", err)
		}
	}
	if seconds := m.GetLifetimeSeconds(); seconds != 0 {
		const most = 100 * 366 * 24 * 3600
		if seconds < int64(minLifetime/time.Second) || seconds > most {
			return nil, fault.InField("lifetime_seconds", fault.New(fault.Invalid, "%d is not 60 to %d", seconds, most))
		}
		request.Expires = a.now().Add(time.Duration(seconds) * time.Second)
	}
	secret, token, err := a.Mint(ctx, request)
	s.note(err, "created the token "+token.ID)
	return connect.NewResponse(&packhorsev1.MintResponse{Secret: secret, Token: token.message()}), err
}

// List implements TokenService.
func (s *Service) List(ctx context.Context, _ *connect.Request[packhorsev1.TokenServiceListRequest]) (
	*connect.Response[packhorsev1.TokenServiceListResponse], error) {
	a, err := s.access()
	if err != nil {
		return nil, err
	}
	list, err := a.List(ctx)
	return connect.NewResponse(&packhorsev1.TokenServiceListResponse{Tokens: messages(list)}), err
}

// Revoke implements TokenService.
func (s *Service) Revoke(ctx context.Context, r *connect.Request[packhorsev1.RevokeRequest]) (
	*connect.Response[packhorsev1.RevokeResponse], error) {
	m := r.Msg
	a, err := s.access()
	if err != nil {
		return nil, err
	}
	list, err := a.Revoke(ctx, m.GetToken())
	s.note(err, "revoked "+m.GetToken())
	return connect.NewResponse(&packhorsev1.RevokeResponse{Revoked: messages(list)}), err
}

func messages(list []Token) (all []*packhorsev1.Token) {
	for _, t := range list {
		all = append(all, t.message())
	}
	return all
}

func (t *Token) message() *packhorsev1.Token {
	when := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return at.Format(time.RFC3339)
	}
	return &packhorsev1.Token{Id: t.ID, Name: t.Name, Scope: t.Scope, Repositories: t.Repositories, Refs: t.Refs,
		Created: when(t.Created), Expires: when(t.Expires), Used: when(t.Used)}
}

// Get implements RuleService.
func (s *Service) Get(ctx context.Context, _ *connect.Request[packhorsev1.RuleServiceGetRequest]) (
	*connect.Response[packhorsev1.RuleServiceGetResponse], error) {
	a, err := s.access()
	if err != nil {
		return nil, err
	}
	set, err := a.Rules(ctx, true)
	m := &packhorsev1.RuleServiceGetResponse{Version: set.Version, Stored: set.Message()}
	if s.Auth != nil {
		m.Configured = s.Auth.written.Load().Message()
	}
	return connect.NewResponse(m), err
}

// Message returns the rules as a message, without their version.
func (s *RuleSet) Message() *packhorsev1.RuleSet {
	m := &packhorsev1.RuleSet{}
	for _, g := range s.Groups {
		m.Groups = append(m.Groups, &packhorsev1.Group{Name: g.Name, Members: g.Members})
	}
	for _, r := range s.Rules {
		m.Rules = append(m.Rules, &packhorsev1.Rule{Name: r.Name, Who: r.Who, Repositories: r.Repositories, Refs: r.Refs,
			May: r.May})
	}
	return m
}

// RuleSetOf is the inverse of RuleSet.Message.
func RuleSetOf(m *packhorsev1.RuleSet) (set RuleSet) {
	for _, g := range m.GetGroups() {
		set.Groups = append(set.Groups, GroupSpec{g.GetName(), g.GetMembers()})
	}
	for _, r := range m.GetRules() {
		set.Rules = append(set.Rules, RuleSpec{r.GetName(), r.GetWho(), r.GetRepositories(), r.GetRefs(), r.GetMay()})
	}
	return set
}

// With returns the rules of a configuration, and after them stored ones.
func (s *RuleSet) With(stored RuleSet) ([]Rule, error) {
	first, err := ParseRules(s.Groups, s.Rules, ConfiguredRule)
	if err != nil {
		return nil, err
	}
	rest, err := stored.Parse()
	return append(first, rest...), err
}

// ConfiguredRule returns the name of a rule of the configuration with an index.
func ConfiguredRule(i int) string { return "rule " + strconv.Itoa(i+1) }

// Set implements RuleService.
func (s *Service) Set(ctx context.Context, r *connect.Request[packhorsev1.RuleServiceSetRequest]) (
	*connect.Response[packhorsev1.RuleServiceSetResponse], error) {
	m := r.Msg
	a, err := s.access()
	if err != nil {
		return nil, err
	}
	set := RuleSetOf(m.GetSet())
	rules, err := set.Parse()
	if err != nil {
		return nil, fault.InField("set", err)
	}
	if !m.GetForce() {
		if err := s.checkSet(ctx, rules, m.GetExpectedVersion()); err != nil {
			return nil, fault.InField("set", err)
		}
	}
	set, err = a.SetRules(ctx, set, m.GetExpectedVersion())
	s.note(err, fmt.Sprint("stored version ", set.Version, " of the rules"))
	return connect.NewResponse(&packhorsev1.RuleServiceSetResponse{Version: set.Version}), err
}

// checkSet refuses rules that open the server, that lock the caller out, or that leave no administrator where there was
// one. It does not check rules for another version of the stored ones.
func (s *Service) checkSet(ctx context.Context, rules []Rule, version uint64) error {
	stored, err := s.Access.Rules(ctx, true)
	if err != nil || stored.Version != version {
		return err
	}
	if len(rules) == 0 && len(stored.Rules) > 0 {
		return fault.New(fault.Precondition, "the new set has no rules, and without rules every token may do everything in "+
			"its scope: add a rule, or set force (--force)")
	}
	if s.mayStay != nil {
		if !s.mayStay(rules) {
			return fault.New(fault.Precondition, "with these rules you could not change the rules any more: permit yourself "+
				"\"admin\" on \"**\", or set force")
		}
		return nil
	}
	if s.Auth == nil { // a storage node does not know the rules of the gateways' configuration
		return nil
	}
	before, err := stored.Parse()
	if err != nil {
		return err
	}
	tokens, err := s.Access.List(ctx)
	if err != nil {
		return err
	}
	configured := s.Auth.parts.configuredRules()
	if haveAdministrator(slices.Concat(configured, before), tokens) &&
		!haveAdministrator(slices.Concat(configured, rules), tokens) {
		return fault.New(fault.Precondition, "with these rules no caller could manage tokens and rules any more: permit "+
			"one \"admin\" on \"**\", or set force (--force)")
	}
	return nil
}

// haveAdministrator reports whether a caller named in rules administers the server, or without rules a token.
func haveAdministrator(rules []Rule, tokens []Token) bool {
	if len(rules) == 0 {
		return slices.ContainsFunc(tokens, func(t Token) bool {
			return t.Scope == Admin.String() && len(t.Repositories) == 0 && len(t.Refs) == 0
		})
	}
	for i := range rules {
		for c := range rules[i].callers {
			if c.name != anonymous && administers(rules, Identity{Name: c.name, By: c.by}) {
				return true
			}
		}
	}
	return false
}

// Test implements RuleService.
func (s *Service) Test(ctx context.Context, r *connect.Request[packhorsev1.RuleServiceTestRequest]) (
	*connect.Response[packhorsev1.RuleServiceTestResponse], error) {
	m := r.Msg
	if s.Auth == nil {
		return nil, fault.New(fault.Precondition, "a storage node does not have the rules of gateways: ask a gateway")
	}
	if err := s.Auth.refresh(ctx); err != nil {
		return nil, err
	}
	repo, err := git.ParseRepoPath(m.GetPath())
	if err != nil {
		return nil, fault.InField("path", err)
	}
	if ref := m.GetRef(); ref != "" {
		if _, err := git.ParseRefName(ref); err != nil || !strings.HasPrefix(ref, "refs/") {
			return nil, fault.InField("ref", fault.New(fault.Invalid, "%.80q is not a full name such as refs/heads/main", ref))
		}
	}
	who, err := parseCaller(m.GetWho())
	if err != nil {
		return nil, fault.InField("who", err)
	}
	id := Identity{Name: who.name, By: who.by}
	if who.name == anonymous {
		id.Name = ""
	}
	rules, path := *s.Auth.rules.Load(), s.Auth.targetOf(repo)
	others := s.Auth.o.Hook != nil || s.Auth.o.Origins.find(repo) != nil
	list := explain(rules, id, path, git.RefName(m.GetRef()), others)
	read := list[0]
	if stranger := explain(rules, Identity{}, path, "", others)[0]; !read.Permitted && stranger.Permitted {
		read.Permitted, read.By = true, stranger.By+", for anonymous"
	}
	if _, ok := decide(rules, Identity{}, path, Read); !ok && !read.Permitted && s.Auth.open(id) && !others {
		read.Permitted, read.By = true, "no rule: public read"
	}
	for _, d := range list[1:] {
		if d.Permitted && !read.Permitted && !others && slices.ContainsFunc(rules, isAboutRefs) { // as in Auth.May
			d.Permitted, d.By = false, d.By+", but a change needs read, too"
		}
	}
	return connect.NewResponse(&packhorsev1.RuleServiceTestResponse{Decisions: list}), nil
}

// Explain returns the decisions of rules about changes of a ref, as RuleService.Test does. It ignores that a change
// needs the permission to read.
func Explain(rules []Rule, id Identity, repo git.RepoPath, ref git.RefName) []*packhorsev1.RuleDecision {
	components := pathOf(repo)
	return explain(rules, id, target{components: components, folded: fold(components)}, ref, false)
}

// explain returns the decisions of rules about a caller. Without a ref, rules with refs do not matter. others reports
// whether a hook or an origin decides where no rule does.
func explain(rules []Rule, id Identity, path target, ref git.RefName, others bool) (
	list []*packhorsev1.RuleDecision) {
	components := strings.Split(string(ref), "/")
	for _, word := range []string{"read", "create", "write", "force", "delete", "admin"} {
		kind := node.RefChangeOf(word)
		op, _ := ParseOperation(word)
		d := &packhorsev1.RuleDecision{Operation: word, By: "no rule: the hook or the origin decides, or it is refused"}
		if len(rules) == 0 && !others && !id.Anonymous() {
			d.Permitted, d.By = true, "the credential: there are no rules"
		}
		r := firstRule(rules, id, path, func(r *Rule) bool {
			return r.refs == nil || kind != 0 && slices.ContainsFunc(r.refs, func(p node.RefPattern) bool {
				return git.MatchComponents(placeName(p, id.Name), components)
			})
		})
		if r != nil {
			d.By, d.Permitted = r.name, kind == 0 && int(op) < r.permits || r.changes&kind != 0
		}
		list = append(list, d)
	}
	return list
}

// Forget drops what is cached about a user.
func (s *Service) Forget(ctx context.Context, r *connect.Request[packhorsev1.ForgetRequest]) (
	*connect.Response[packhorsev1.ForgetResponse], error) {
	m := r.Msg
	if err := CheckName(m.GetUser()); err != nil {
		return nil, fault.InField("user", err)
	}
	if s.Access != nil && s.Access.IsShared() {
		err := s.Access.content.change(ctx, func(*tokenTable) (*accessChange, error) {
			return &accessChange{Forget: m.GetUser()}, nil
		})
		if err != nil {
			return nil, err
		}
	}
	if s.Auth != nil {
		s.Auth.forget()
	}
	s.note(nil, "forgot the user "+m.GetUser())
	return connect.NewResponse(&packhorsev1.ForgetResponse{}), nil
}
