package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
)

// Nodes reports the states and object stores of a running gateway's nodes, and why pushes to them are refused.
func Nodes(ctx context.Context, ask Ask, r *Report) {
	var nodes []adminapi.NodeStatus
	if _, err := ask(ctx, "gateway", internalv1.AdminWork_ADMIN_WORK_NODES, "", &nodes); err != nil {
		r.Add(Finding{Group: GroupNodes, Severity: Hint, Kind: "not-asked",
			Text: err.Error(), Advice: "run doctor as root or as the user of the gateway"})
		return
	}
	for _, n := range nodes {
		r.Fact(GroupNodes, fmt.Sprintf("%s is %s, store %s", n.Name, n.State(), cmp.Or(n.Store, "none or not known")))
		if n.Down != "" {
			r.Add(Finding{Group: GroupNodes, Severity: Problem, Kind: "node-down", Subject: n.Name,
				Text: n.Down, Advice: "packhorse doctor on the machine of the node"})
		}
	}
	for i, n := range nodes {
		isOther := func(other adminapi.NodeStatus) bool { return other.Refused == n.Refused }
		if n.Refused == "" || slices.IndexFunc(nodes, isOther) < i { // one finding for a route
			continue
		}
		severity := Hint // copies that an operator keeps equal are for fetches only
		var names []string
		for _, other := range nodes[i:] {
			if !isOther(other) {
				continue
			}
			names = append(names, other.Name)
			if other.Store != "" {
				severity = Problem
			}
		}
		r.Add(Finding{Group: GroupNodes, Severity: severity, Kind: "pushes-refused",
			Subject: strings.Join(names, ", "), Text: "pushes are refused: " + n.Refused, Advice: router.AllowPushes})
	}
}
