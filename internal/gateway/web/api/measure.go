package api

import (
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// measure measures a document, with fragments counted where they are used. Validation walks each operation and each
// fragment of a document, together with the fragments that it uses. The size bounds that work.
type measure struct {
	fragments ast.FragmentDefinitionList
	known     map[string]*extent // by fragment; nil: being measured
}

// extent is the size of a part of a document.
type extent struct {
	depth int // of fields in fields
	parts int // fields, fragments, directives, variables and values; at most maxParts
}

const maxParts = 1_000_000 // the count stops there

func (e *extent) add(parts int) { e.parts = min(e.parts+parts, maxParts) }

func (e *extent) include(other extent) {
	e.depth = max(e.depth, other.depth)
	e.add(other.parts)
}

// document returns the size of a whole document. It fails if a fragment contains itself.
func (m *measure) document(d *ast.QueryDocument) (all extent, err error) {
	for _, o := range d.Operations {
		size, err := m.set(o.SelectionSet)
		if err != nil {
			return all, err
		}
		all.include(size)
		all.add(countDirectives(o.Directives))
		for _, v := range o.VariableDefinitions {
			all.add(1 + countValues(v.DefaultValue) + countDirectives(v.Directives))
		}
	}
	for _, f := range d.Fragments {
		size, err := m.set(f.SelectionSet)
		if err != nil {
			return all, err
		}
		all.include(size)
		all.add(1 + countDirectives(f.Directives))
	}
	return all, nil
}

func (m *measure) set(set ast.SelectionSet) (all extent, err error) {
	for _, selection := range set {
		var one extent
		var err error
		switch s := selection.(type) {
		case *ast.Field:
			one, err = m.set(s.SelectionSet)
			one.depth++
			one.add(1 + countArguments(s.Arguments) + countDirectives(s.Directives))
		case *ast.InlineFragment:
			one, err = m.set(s.SelectionSet)
			one.add(1 + countDirectives(s.Directives))
		case *ast.FragmentSpread:
			one, err = m.fragment(s)
			one.add(1 + countDirectives(s.Directives))
		}
		if err != nil {
			return all, err
		}
		all.include(one)
	}
	return all, nil
}

func (m *measure) fragment(spread *ast.FragmentSpread) (extent, error) {
	def := m.fragments.ForName(spread.Name)
	if def == nil {
		return extent{}, nil // validation reports it
	}
	known, seen := m.known[spread.Name]
	if known != nil {
		return *known, nil
	}
	if seen {
		return extent{}, gqlerror.ErrorPosf(spread.Position, "fragment %.40q contains itself", spread.Name)
	}
	m.known[spread.Name] = nil
	size, err := m.set(def.SelectionSet)
	size.add(countDirectives(def.Directives))
	m.known[spread.Name] = &size
	return size, err
}

func countDirectives(list ast.DirectiveList) (n int) {
	for _, d := range list {
		n += 1 + countArguments(d.Arguments)
	}
	return n
}

func countArguments(list ast.ArgumentList) (n int) {
	for _, a := range list {
		n += countValues(a.Value)
	}
	return n
}

// countValues counts a value with the elements of a list and the fields of an object. Nil counts as 0.
func countValues(v *ast.Value) int {
	if v == nil {
		return 0
	}
	n := 1
	for _, child := range v.Children {
		n += countValues(child.Value)
	}
	return n
}
