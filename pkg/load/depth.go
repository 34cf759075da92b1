// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/scanner"
	"cuelang.org/go/cue/token"
)

// maxTokens is the largest number of tokens in a chain: 10,000 operators, selectors, calls or labels, and what they
// are applied to. The syntax tree of a chain is as deep as the chain is long, and CUE calls itself for each level. From
// about 300,000 levels its stack has 1 GB, at which Go ends the process. CUE limits brackets in brackets itself, to
// 10,000.
const maxTokens = 20_000

// parseFile is parser.ParseFile for all files of plans and of the packages that they import. It refuses files with
// chains that are too long.
func parseFile(name string, src any, c parser.Config) (*ast.File, error) {
	if b, ok := src.([]byte); ok {
		if err := tooDeep(name, b); err != nil {
			return nil, err
		}
	}
	return parser.ParseFile(name, src, c)
}

// bracket is an open bracket.
type bracket struct {
	token token.Token
	// sum is the number of tokens since the last comma, and longest that of the longest element before it. What is in
	// brackets counts as its longest element.
	sum, longest int
}

// closing is the bracket that closes an open one.
var closing = map[token.Token]token.Token{
	token.LPAREN: token.RPAREN, token.LBRACK: token.RBRACK, token.LBRACE: token.RBRACE,
}

// tooDeep is the error of a file of CUE with a chain of more than maxTokens: of tokens that no comma separates, where a
// newline may be a comma, too. It is nil for other files. The text need not be valid: the parser then looks for a place
// where it can go on, and also takes other tokens for a missing bracket. So commas in parentheses do not separate, and
// after brackets that do not match, nothing does.
func tooDeep(name string, src []byte) cueerrors.Error {
	var s scanner.Scanner
	s.Init(token.NewFile(name, -1, len(src)), src, nil, 0)
	open := []bracket{{token: token.LBRACE}}
	total, lost := 0, false // total is the sum of all open brackets
	var strings []int       // the lengths of open whose last bracket is in a string
	for inString := false; ; {
		pos, tok, lit := s.Scan()
		top := &open[len(open)-1]
		switch tok {
		case token.EOF:
			return nil
		case token.COMMA:
			if !lost && top.token != token.LPAREN {
				total -= top.sum
				top.longest, top.sum = max(top.longest, top.sum), 0
			}
		case token.LPAREN, token.LBRACK, token.LBRACE:
			if open = append(open, bracket{token: tok}); inString {
				strings = append(strings, len(open))
			}
			inString = false
			continue // CUE limits these
		case token.RPAREN, token.RBRACK, token.RBRACE:
			if len(open) == 1 || closing[top.token] != tok {
				lost = true
				break
			}
			if n := len(strings); n > 0 && strings[n-1] == len(open) {
				strings, lit = strings[:n-1], s.ResumeInterpolation()
			}
			total += max(top.longest-top.sum, 0)
			open = open[:len(open)-1]
			open[len(open)-1].sum += max(top.longest, top.sum)
		}
		inString = tok != token.STRING && len(lit) > 0 && lit[len(lit)-1] == '(' // the next token is the bracket
		if tok == token.COMMA {
			continue
		}
		open[len(open)-1].sum++
		if total++; total > maxTokens {
			return cueerrors.Newf(pos, "a chain of operators, selectors, calls or labels is too long: more than %d tokens "+
				"without a comma or a new line; make several fields of it", maxTokens)
		}
	}
}
