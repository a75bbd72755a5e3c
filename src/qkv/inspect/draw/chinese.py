"""Chinese texts of views, by their English ones."""

TITLES = {
    "From input to output": "从输入到输出",
    "Step by step": "逐步预测",
    "Attention": "注意力",
    "By hand": "手算一遍",
    "Masks": "掩码",
    "Shift": "右移与标签",
    "Logit lens": "逐层预测（logit lens）",
    "Drift": "残差流的变化",
    "Contributions": "对 logit 的贡献",
    "Neurons": "前馈层神经元",
    "Roles of heads": "注意力头的分工",
    "Attribution": "归因",
    "Attention rollout": "注意力展开（rollout）",
    "Beam search": "束搜索",
    "One word in several texts": "同一个词在不同句子里",
    "Two models side by side": "两个模型对照",
    "Positions": "位置",
    "Embeddings": "词嵌入",
    "Training curves": "训练曲线",
}
ABOUTS = {
    "The main quantities in the order of the formulas, with their shapes.": (
        "按公式的顺序列出主要的量及其形状。"
    ),
    "The likeliest outputs at each step; entropy 0 is certain, ln V is a uniform guess.": (
        "每一步概率最高的候选；熵为 0 表示完全确定，ln V 表示均匀乱猜。"
    ),
    "How much each token (row) looks at each other (column); every row sums to 1.": (
        "每个词元（行）对其他词元（列）的注意力权重；每行之和为 1。"
    ),
    "One token in one head and one layer: every formula, and below it the same formula with "
    "this text's numbers (the first terms of each sum).": (
        "一个词元经过一层、一个头：先写公式，下面代入这句话的数字（求和只写前几项）。"
    ),
    "Which tokens (columns) each token (row) may see: as 1 and 0, and as M, which is added to "
    "the scores: 0 changes nothing, −∞ makes the weight 0. Several texts also show padding and "
    "packing.": (
        "每个词元（行）能看到哪些词元（列）：写成 1 和 0，或写成加到分数上的 M：0 不改变分数，−"
        "∞ 使权重为 0。给出多个文本时，还会显示填充和打包。"
    ),
    "What the decoder reads (shifted to the right) beside what it should say next, and what "
    "each label costs: −log P. Their mean is the loss.": (
        "解码器的输入（右移一位）与它应当输出的标签对照，以及每个标签的代价 −log P；其平均值就"
        "是损失。"
    ),
    "What each layer would predict if it were the last one.": (
        "如果每一层就是最后一层，它会预测什么。"
    ),
    "How far the residual stream has turned from its input: the cosine, 1 for not at all.": (
        "残差流相对输入转过了多少：余弦为 1 表示方向没有变化。"
    ),
    "What each head and each layer adds to one logit (direct logit attribution, with the "
    "deviations of norms as they are in this pass). All terms sum up to the logit.": (
        "每个头、每一层给某个 logit 加了多少（直接 logit 归因，归一化的标准差取本次计算的值）。"
        "所有项之和恰好等于该 logit。"
    ),
    "Which neurons of a feed-forward layer fire at each token, and which words each of them "
    "promotes there: its row of W₂ times W_out (of an encoder: times the embedding).": (
        "前馈层的哪些神经元在每个词元上激活，各自推高哪些词：W₂ 中对应的一行乘以 W_out（编码器"
        "则乘以词嵌入）。"
    ),
    "A score for each head (layers down, heads across): its mean weight on the token before, "
    "on a repeated token, on what followed it (induction), on the first token (sink), all on "
    "random tokens that come twice; and of cross-attention, on the source token that an output "
    "comes from.": (
        "每个头的得分（行是层，列是头）：在重复两遍的随机词元上，对前一个词元、相同词元、相同词"
        "元之后的词元（归纳头）、第一个词元（注意力汇）的平均权重；交叉注意力则是对输出所来自的"
        "源词元的平均权重。"
    ),
    "How much each token adds to the log-odds of each output: above 0 for it, below 0 against "
    "it. Where it is affordable, this is what the output loses without the token (its vector "
    "becomes the mean of all), else integrated gradients. More reliable than rollout.": (
        "每个词元给每个输出的对数几率加了多少：大于 0 是支持，小于 0 是反对。算得起时，直接看去"
        "掉这个词元（其向量换成全句平均）后输出损失多少，否则用积分梯度。比注意力展开可靠。"
    ),
    "Attention maps multiplied through the layers, as if tokens were passed on unchanged; "
    "attribution is more reliable.": (
        "把各层的注意力矩阵连乘，仿佛词元在层间原样传递；归因更可靠。"
    ),
    "Every candidate of a search: kept, ended or pruned.": "搜索中的每个候选：保留、结束或剪掉。",
    "The cosine between a word's vectors in two texts after each layer: 1 at the input, where "
    "the word is the same; the more its context counts, the smaller.": (
        "同一个词在两个句子中的向量在每一层之后的余弦：输入处词相同，接近 1；上下文的影响越大，"
        "余弦越小。"
    ),
    "One text in two models: which tokens each token may see, and what is predicted there. Of "
    "models alike, before and after tuning, also how far each layer's stream has moved.": (
        "同一文本在两个模型里：每个词元能看到哪些词元，在那里预测什么。结构相同的模型（如微调前"
        "后）还会给出每一层残差流变化了多少。"
    ),
    "The table that is added to embeddings, and how similar its rows are; or, with rotary "
    "positions, the angles that turn queries and keys, and what a distance makes of a product.": (
        "加到词嵌入上的位置表，以及各行有多相似；对旋转位置编码，则是查询和键转过的角度，以及内"
        "积如何随距离变化。"
    ),
    "The tokens whose vectors in the embedding table point most nearly the same way.": (
        "词嵌入表中方向最接近的词元。"
    ),
    "Loss, learning rate, speed and scores over the steps of training.": (
        "损失、学习率、速度和评分随训练步数的变化。"
    ),
}
SHARED = {
    "Inside {model}": "{model} 的内部",
    "source": "源",
    "target": "目标",
    "encoder": "编码器",
    "decoder": "解码器",
    "token": "词元",
    "query": "查询",
    "key": "键",
    "value": "值",
    "layer": "层",
    "head": "头",
    "neuron": "神经元",
    "output": "输出",
    "outputs": "个输出",
    "steps": "步",
    "positions": "个位置",
    "texts": "句子",
    "text": "文本",
    "after": "之后",
    "at": "位置",
    "step": "步",
    "position": "位置",
    "dimension": "维度",
    "pair": "维度对",
    "cosine": "余弦",
    "share": "份额",
    "activation": "激活值",
    "mean": "平均",
    "mean weight": "平均权重",
    "attention weight": "注意力权重",
    "masked": "被掩码",
    "input": "输入",
    "layer {layer}": "第 {layer} 层",
    "layer {layer}, head {head}": "第 {layer} 层，头 {head}",
    "layer {layer}, mean of {count} heads": "第 {layer} 层，{count} 个头的平均",
    "self-attention": "自注意力",
    "cross-attention": "交叉注意力",
    "self-attention of the encoder": "编码器自注意力",
    "self-attention of the decoder": "解码器自注意力",
    "Self-attention of the encoder": "编码器的自注意力",
    "Masked self-attention of the decoder": "解码器的带掩码自注意力",
    "Cross-attention: target tokens look at source tokens": "交叉注意力：目标词元看源词元",
    "(the last {count} tokens)": "（最后 {count} 个词元）",
    "Hatched: the query may not see this key (masked).": "斜线：查询看不到这个键（被掩码）。",
    "Colours end at {limit:.3g}; {count} cells are beyond, up to {most:.3g}.": (
        "颜色到 {limit:.3g} 为止；有 {count} 格超出，最大 {most:.3g}。"
    ),
    "The last {most} of {count:,} {what} are drawn.": "共 {count:,} {what}，只画最后 {most} 个。",
}
QUANTITIES = {
    "source tokens": "源词元",
    "target tokens, shifted": "目标词元（右移一位）",
    "labels": "标签",
    "embedding": "词嵌入",
    "positions": "位置编码",
    "input": "输入",
    "self-attention": "自注意力",
    "cross-attention": "交叉注意力",
    "feed-forward": "前馈层",
    "convolution": "卷积",
    "norm before it": "先归一化",
    "norm after it": "再归一化",
    "queries": "查询",
    "keys": "键",
    "values": "值",
    "products": "内积",
    "position bias": "位置偏置",
    "mask": "掩码",
    "scores, masked": "分数（已加掩码）",
    "attention weights": "注意力权重",
    "heads": "各个头",
    "output": "输出",
    "residual and norm": "残差与归一化",
    "residual (norm before)": "残差（归一化在前）",
    "residual (two norms)": "残差（前后各一次归一化）",
    "residual (no norm)": "残差（无归一化）",
    "inner layer": "内层",
    "shares of the experts": "各专家的份额",
    "encoder output": "编码器输出",
    "decoder output": "解码器输出",
    "logits": "logits",
    "probabilities": "概率",
    "loss": "损失",
    "text as one vector": "整段文本的向量",
}
IN_FORMULAS = {  # regular expressions
    r"M: 0 or −∞": "M：0 或 −∞",
    r"\bturn\(": "旋转(",
    r" \+ segment\b": " + 段嵌入",
    r"bias of each distance": "每个距离的偏置",
    r"mean of −log P\(Y_label\)": "−log P(Y_label) 的平均",
    r"softmax over tokens\((\w+)\)": r"对词元做 softmax(\1)",
    r"the (\d+) largest of (.+), renormalised": r"\2 中最大的 \1 个，重新归一化",
    r"first token of (\w+)": r"\1 的首个词元",
    r"last token of (\w+)": r"\1 的末个词元",
    r"mean over tokens of (\w+)": r"\1 各词元的平均",
    r"maximum over tokens of (\w+)": r"\1 各词元的最大值",
    r"mean over tokens, the n-th weighing n, of (\w+)": r"\1 各词元的加权平均（第 n 个权重为 n）",
}
FLOW = {
    "shape": "形状",
    "a number": "标量",
    "axes": "维度",
    "{lane} layer {layer}": "{lane}第 {layer} 层",
    "{lane} layer × {count}": "{lane}层 × {count}",
}
REMARKS = {
    "{title}, {name}": "{title}，{name}",
    "{title}: {name}": "{title}：{name}",
    "or": "或",
    "attention: {name} is drawn; {rest} shows the others": (
        "attention：只画了 {name}；用 {rest} 看其余的"
    ),
    "attention: the last {shown} of {count} layers; --layer shows others": (
        "attention：共 {count} 层，只画最后 {shown} 层；用 --layer 看其他层"
    ),
    "attribution: of the last {shown} of {count:,} outputs": (
        "attribution：共 {count:,} 个输出，只算最后 {shown} 个"
    ),
    "attribution: {warning}": "attribution：{warning}",
    "beam: the search stops after {count} tokens": "beam：搜索在 {count} 个词元后停止",
    "neurons: of layer {layer}; --layer shows others": (
        "neurons：第 {layer} 层；用 --layer 看其他层"
    ),
    "positions: the first {shown} of {count:,}": (
        "positions：共 {count:,} 个位置，只看前 {shown} 个"
    ),
    "There is no text to read, and only the views positions, embeddings and curves need none; "
    "these are the training curves.": (
        "没有给出文本，而只有 positions、embeddings 和 curves 不需要文本；这里显示训练曲线。"
    ),
    "no font here has Chinese characters, so figures are labelled in English; install one "
    "(Debian and Ubuntu: fonts-noto-cjk) or write .svg or .html": (
        "这台机器没有中文字体，图中文字改用英文；请安装一种（Debian 和 Ubuntu：fonts-noto-cjk），"
        "或输出 .svg 或 .html"
    ),
    "the text": "整段文本",
}
BEAM_REASONS = {
    "no room for more tokens": "长度已到上限",
    "it ends, but is not among the {beams} best candidates": (
        "已到句末，但不在得分最高的 {beams} 个候选之中"
    ),
    "{beams} candidates that go on have a higher score": "有 {beams} 个可继续的候选得分更高",
    "{beams} that have ended are better for their length": (
        "按长度折算，有 {beams} 个已结束的假设更好"
    ),
    "the search was over: it could not become better than what has ended": (
        "搜索已结束：它不可能再超过已结束的假设"
    ),
    "the search was over: {beams} had ended": "搜索已结束：已有 {beams} 个假设结束",
    "none of its continuations was among the {beams} best": (
        "它的后续没有一个进入得分最高的 {beams} 个"
    ),
}
PREDICTIONS = {
    "candidates": "候选",
    "entropy": "熵",
    "label": "标签",
    "entropy (nats)": "熵（奈特）",
    "{name} (rank {rank})": "{name}（第 {rank} 名）",
    "{position}: after {token}": "{position}：在 {token} 之后",
    "{position}: at {token}": "{position}：{token} 处",
    "each token": "每个词元",
    "probability of the {count} best candidates, side by side": (
        "前 {count} 个候选的概率，并排显示"
    ),
    "Each step: the wider the first bar, the surer the model": "每一步：第一条越宽，模型越有把握",
    "The last {shown} of {count:,} steps.": "共 {count:,} 步，显示最后 {shown} 步。",
    "at this token": "在这个词元处",
    "probability of the best candidate": "最佳候选的概率",
    "What each layer would predict if it were the last one": (
        "如果每一层就是最后一层，它会预测什么"
    ),
    "Logit lens, last layer first": "逐层预测，最后一层在最上面",
    "cosine to the input": "与输入的余弦",
    "distance from the input / its length": "与输入的距离 / 输入的长度",
    "How far the residual stream has moved from its input": "残差流离输入有多远",
    "reads Y_shift": "读入 Y_shift",
    "label Y_label": "标签 Y_label",
    "P(label)": "P(标签)",
    "−log P": "−log P",
    "mean = {mean:.3f}": "平均 = {mean:.3f}",
    "At each position the label is the next token of the target": (
        "每个位置的标签就是目标的下一个词元"
    ),
    "score": "得分",
    "P": "P",
    "log P of all": "整句 log P",
    "fate": "结局",
    "why": "原因",
    "best": "最佳",
    "kept": "保留",
    "ended": "结束",
    "pruned": "剪掉",
    "Every candidate": "全部候选",
    "Beam search with {summary}": "束搜索：{summary}",
    "Beam search with {beams} beams": "束搜索，{beams} 束",
    "{beams} beams: {count} candidates, {pruned} pruned": (
        "{beams} 束：{count} 个候选，剪掉 {pruned} 个"
    ),
    "{count} less likely candidates that were pruned are not shown.": (
        "另有 {count} 个概率较低、被剪掉的候选没有画出。"
    ),
    "Number: probability of the token after the hypothesis before it. ■ ended.": (
        "数字：该词元接在前面假设之后的概率。■ 表示已结束。"
    ),
}
HAND = {
    "{token} (token {position}) in layer {layer}, head {head} of {attention}": (
        "{token}（第 {position} 个词元），{attention}，第 {layer} 层，头 {head}"
    ),
    "formula": "公式",
    "with this text's numbers": "代入这句话的数字",
    "key j": "键 j",
    "q·k_j": "q·k_j",
    "÷ √d_k": "÷ √d_k",
    "M": "M",
    "softmax": "softmax",
    "{count} keys with less weight are not shown.": "另有 {count} 个权重较小的键没有画出。",
    "what comes in": "输入",
    "LayerNorm": "LayerNorm",
    "RMSNorm": "RMSNorm",
    "deviation": "标准差",
    "root mean square": "均方根",
    "normalised": "归一化",
    "q·k_j for each j": "对每个 j 求 q·k_j",
    "weighted values": "值的加权和",
    "all heads together": "所有头合并",
    "head {head}: {own} + others: {rest}": "头 {head}：{own} + 其余：{rest}",
    "residual connection": "残差连接",
    "after cross-attention": "经过交叉注意力之后",
    "first neuron": "第一个神经元",
    "gate of the first neuron": "第一个神经元的门",
    "inner layer": "内层",
    "feed-forward": "前馈层",
    "{count} of {all} above 0": "{all} 个中有 {count} 个大于 0",
}
MASKS = {
    "causal": "因果",
    "everything is visible": "全部可见",
    "padding is hidden": "填充不可见",
    ", text {number}": "，文本 {number}",
    ", texts packed end to end": "，文本首尾相接打包",
    "boolean": "布尔",
    "M, additive": "M，加性",
    "What each token may see": "每个词元能看到什么",
    "Left: may the query (row) see the key (column)? Right: M, added to scores.": (
        "左：查询（行）能否看到键（列）；右：加到分数上的 M。"
    ),
}
INSIDE = {
    "What adds to the logit of {output} after {token}: {logit:.3f}": (
        "{token} 之后 {output} 的 logit（{logit:.3f}）由什么相加而成"
    ),
    "added to the logit": "给 logit 加上",
    "all heads of {name}": "{name}的所有头",
    "feed-forward of layer {layer}": "第 {layer} 层前馈",
    "input (embedding and positions)": "输入（词嵌入与位置）",
    "biases of attention": "注意力的偏置",
    "shifts of norms": "归一化的偏移 β",
    "bias of the output": "输出层偏置",
    "remainder (rounding, changes)": "余项（舍入、改动）",
    "sum": "合计",
    "logit": "logit",
    "term": "项",
    "All heads, feed-forward layers and other terms sum up to {total:.3f}.": (
        "所有头、前馈层和其他项合计 {total:.3f}。"
    ),
    "{stack}, layer {layer}: {share:.0%} of all activations are above 0": (
        "{stack}第 {layer} 层：{share:.0%} 的激活值大于 0"
    ),
    "fires most at": "激活最强处",
    "and moves these words' logits most": "推高最多的词（logit）",
    "looks at the token before": "看前一个词元",
    "looks at the token after": "看后一个词元",
    "looks at the same token earlier": "看前面相同的词元",
    "looks at what came after the same token earlier": "看前面相同词元之后的词元（归纳头）",
    "looks at the first token": "看第一个词元（注意力汇）",
    "looks at the source token that the output comes from": "看输出所来自的源词元（对齐）",
    "attention": "注意力",
    "role": "分工",
    "best heads (layer.head)": "得分最高的头（层.头）",
    "even head": "均匀的头",
    "Which head does what": "哪个头做什么",
    "source tokens": "源词元",
    "target tokens": "目标词元",
    "for (above 0) or against it": "支持（大于 0）或反对",
    "outputs down, {side} tokens across": "行是输出，列是{side}词元",
    "How much each token adds to each output, by {method}": (
        "每个词元给每个输出加了多少（{method}）"
    ),
    "removing it": "去掉词元",
    "integrated gradients": "积分梯度",
    "gradient × input": "梯度 × 输入",
    "Not converged: scores miss the change by up to {percent:.0f} %.": (
        "未收敛：各项之和与实际变化最多相差 {percent:.0f} %。"
    ),
    "Attention multiplied through all layers": "各层注意力连乘",
    "; {token!r} is an attention sink: heads with nothing to do look at it, so its share says "
    "little": ("；{token!r} 是注意力汇：无事可做的头都看它，所以它的份额说明不了什么"),
}
OTHERS = {
    "Cosine between the vectors of {word}": "{word} 的向量之间的余弦",
    "How alike {word} is in two texts, layer by layer": "{word} 在两个句子里有多相似（逐层）",
    "{count} more pairs are in the table.": "另有 {count} 对见表格。",
    "sees": "能看到",
    "predicts": "预测",
    "{count} of {all}": "{count} / {all}",
    "quantity": "量",
    "largest difference": "最大差异",
    "How far each quantity has moved": "每个量变化了多少",
    "One text in two models": "同一文本，两个模型",
    "Filled: a row's token may see a column's.": "填色：该行的词元能看到该列的词元。",
    "Right: its best prediction.": "右侧：它的最佳预测。",
    "The table: {count} positions × {width}": "位置表：{count} 个位置 × {width} 维",
    "Each position with each other": "两两位置",
    "dot product": "内积",
    "Near positions have similar vectors": "相近的位置向量相似",
    "cosines of the first {count} positions": "前 {count} 个位置的余弦",
    "cos of each pair's angle": "每个维度对转角的余弦",
    "cos(m·θ_i)": "cos(m·θ_i)",
    "radians per position": "每个位置转过的弧度",
    "degrees": "角度",
    "positions for one turn": "转一圈的位置数",
    "distance m − n": "距离 m − n",
    "q_m·k_n / q·k": "q_m·k_n / q·k",
    "Two equal vectors, turned by their positions": "两个相同的向量，按各自的位置旋转",
    "Rotary positions: the product depends on the distance alone": (
        "旋转位置编码：内积只与距离有关"
    ),
    "word": "词",
    "near {word}": "{word} 的近邻",
    "nearest, by cosine": "最近的词元（按余弦）",
    "first": "第一",
    "second": "第二",
    "{name} principal component ({share:.0%} of the variance)": (
        "{name}主成分（占方差 {share:.0%}）"
    ),
    "Words and their nearest neighbours in the embedding table": "词及其在词嵌入表中的近邻",
    "{count} labels are left out where they would cover others.": (
        "有 {count} 个标签会遮住别的，已省略。"
    ),
    "{count} vectors are far away from all others: a ring at the edge marks them.": (
        "有 {count} 个向量离其他都很远：在边缘用圆圈标出。"
    ),
    "loss (nats)": "损失（奈特）",
    "learning rate": "学习率",
    "tokens per second": "每秒词元数",
    "training": "训练",
    "held-out": "验证",
    "Lowest held-out loss {loss:.3g} at step {step:,}": (
        "最低验证损失 {loss:.3g}，在第 {step:,} 步"
    ),
    "{name}: lowest held-out loss {loss:.3g} at step {step:,}": (
        "{name}：最低验证损失 {loss:.3g}，在第 {step:,} 步"
    ),
    "The training loss is measured against smoothed labels (label_smoothing = {share}), the "
    "held-out loss against the labels themselves: compare each with itself.": (
        "训练损失针对平滑后的标签（label_smoothing = {share}），验证损失针对原标签：两者不可直"
        "接比较。"
    ),
}
CHINESE = TITLES | ABOUTS | SHARED | FLOW | REMARKS | BEAM_REASONS
CHINESE |= PREDICTIONS | HAND | MASKS | INSIDE | OTHERS
