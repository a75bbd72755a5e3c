"""Works that the labs' sub-claims are held against: authors, year, title."""

from __future__ import annotations

from qkv_labs.lab import Literature

SOURCES = {
    "arora": "Arora et al. 2024, “Zoology: Measuring and Improving Recall in Efficient Language "
    "Models”",
    "ba": "Ba, Kiros and Hinton 2016, “Layer Normalization”",
    "bahdanau": "Bahdanau, Cho and Bengio 2015, “Neural Machine Translation by Jointly Learning to "
    "Align and Translate”",
    "bengio1994": "Bengio, Simard and Frasconi 1994, “Learning Long-Term Dependencies with "
    "Gradient Descent Is Difficult”",
    "bengio2015": "Bengio et al. 2015, “Scheduled Sampling for Sequence Prediction with Recurrent "
    "Neural Networks”",
    "britz": "Britz et al. 2017, “Massive Exploration of Neural Machine Translation Architectures”",
    "brown": "Brown et al. 2020, “Language Models are Few-Shot Learners”",
    "clark": "Clark et al. 2019, “What Does BERT Look At? An Analysis of BERT's Attention”",
    "dao": "Dao et al. 2022, “FlashAttention: Fast and Memory-Efficient Exact Attention with "
    "IO-Awareness”",
    "devlin": "Devlin et al. 2019, “BERT: Pre-training of Deep Bidirectional Transformers for "
    "Language Understanding”",
    "dong": "Dong, Cordonnier and Loukas 2021, “Attention Is Not All You Need: Pure Attention "
    "Loses Rank Doubly Exponentially with Depth”",
    "elhage": "Elhage et al. 2021, “A Mathematical Framework for Transformer Circuits”",
    "ethayarajh": "Ethayarajh 2019, “How Contextual are Contextualized Word Representations?”",
    "fan": "Fan, Lewis and Dauphin 2018, “Hierarchical Neural Story Generation”",
    "geva": "Geva et al. 2021, “Transformer Feed-Forward Layers Are Key-Value Memories”",
    "goodfellow": "Goodfellow, Bengio and Courville 2016, “Deep Learning”",
    "gu": "Gu and Dao 2023, “Mamba: Linear-Time Sequence Modeling with Selective State Spaces”",
    "haviv": "Haviv et al. 2022, “Transformer Language Models without Positional Encodings Still "
    "Learn Positional Information”",
    "he2016": "He et al. 2016, “Deep Residual Learning for Image Recognition”",
    "he2019": "He, Girshick and Dollár 2019, “Rethinking ImageNet Pre-training”",
    "he2021": "He et al. 2021, “Exposure Bias versus Self-Recovery: Are Distortions Really "
    "Incremental for Autoregressive Text Generation?”",
    "hendrycks": "Hendrycks and Gimpel 2016, “Gaussian Error Linear Units (GELUs)”",
    "henry": "Henry et al. 2020, “Query-Key Normalization for Transformers”",
    "hill": "Hill, Reichart and Korhonen 2015, “SimLex-999: Evaluating Semantic Models with "
    "(Genuine) Similarity Estimation”",
    "hochreiter": "Hochreiter and Schmidhuber 1997, “Long Short-Term Memory”",
    "holtzman": "Holtzman et al. 2020, “The Curious Case of Neural Text Degeneration”",
    "howard": "Howard and Ruder 2018, “Universal Language Model Fine-tuning for Text "
    "Classification”",
    "kazemnejad": "Kazemnejad et al. 2023, “The Impact of Positional Encoding on Length "
    "Generalization in Transformers”",
    "khandelwal": "Khandelwal et al. 2018, “Sharp Nearby, Fuzzy Far Away: How Neural Language "
    "Models Use Context”",
    "kitaev": "Kitaev, Kaiser and Levskaya 2020, “Reformer: The Efficient Transformer”",
    "koehn": "Koehn and Knowles 2017, “Six Challenges for Neural Machine Translation”",
    "leviathan": "Leviathan, Kalman and Matias 2023, “Fast Inference from Transformers via "
    "Speculative Decoding”",
    "liu": "Liu et al. 2019, “RoBERTa: A Robustly Optimized BERT Pretraining Approach”",
    "lu": "Lu et al. 2022, “Fantastically Ordered Prompts and Where to Find Them: Overcoming "
    "Few-Shot Prompt Order Sensitivity”",
    "luong": "Luong, Pham and Manning 2015, “Effective Approaches to Attention-based Neural "
    "Machine Translation”",
    "michel": "Michel, Levy and Neubig 2019, “Are Sixteen Heads Really Better than One?”",
    "mikolov": "Mikolov et al. 2013, “Efficient Estimation of Word Representations in Vector "
    "Space”",
    "min": "Min et al. 2022, “Rethinking the Role of Demonstrations: What Makes In-Context "
    "Learning Work?”",
    "ouyang": "Ouyang et al. 2022, “Training language models to follow instructions with human "
    "feedback”",
    "press": "Press, Smith and Lewis 2022, “Train Short, Test Long: Attention with Linear Biases "
    "Enables Input Length Extrapolation”",
    "raffel": "Raffel et al. 2020, “Exploring the Limits of Transfer Learning with a Unified "
    "Text-to-Text Transformer”",
    "ranzato": "Ranzato et al. 2016, “Sequence Level Training with Recurrent Neural Networks”",
    "ruoss": "Ruoss et al. 2023, “Randomized Positional Encodings Boost Length Generalization of "
    "Transformers”",
    "shazeer2019": "Shazeer 2019, “Fast Transformer Decoding: One Write-Head is All You Need”",
    "shazeer2020": "Shazeer 2020, “GLU Variants Improve Transformer”",
    "shen": "Shen et al. 2020, “PowerNorm: Rethinking Batch Normalization in Transformers”",
    "stahlberg": "Stahlberg and Byrne 2019, “On NMT Search Errors and Model Errors: Cat Got Your "
    "Tongue?”",
    "su": "Su et al. 2021, “RoFormer: Enhanced Transformer with Rotary Position Embedding”",
    "sukhbaatar": "Sukhbaatar et al. 2019, “Augmenting Self-attention with Persistent Memory”",
    "vaswani": "Vaswani et al. 2017, “Attention Is All You Need”",
    "voita": "Voita et al. 2019, “Analyzing Multi-Head Self-Attention: Specialized Heads Do the "
    "Heavy Lifting, the Rest Can Be Pruned”",
    "wei": "Wei et al. 2022, “Finetuned Language Models Are Zero-Shot Learners”",
    "wettig": "Wettig et al. 2023, “Should You Mask 15% in Masked Language Modeling?”",
    "williams": "Williams and Zipser 1989, “A Learning Algorithm for Continually Running Fully "
    "Recurrent Neural Networks”",
    "xiong": "Xiong et al. 2020, “On Layer Normalization in the Transformer Architecture”",
    "zhang2019": "Zhang, Dauphin and Ma 2019, “Fixup Initialization: Residual Learning Without "
    "Normalization”",
    "zhang2022": "Zhang et al. 2022, “Examining Scaling and Transfer of Language Model "
    "Architectures for Machine Translation”",
    "zhou": "Zhou et al. 2023, “LIMA: Less Is More for Alignment”",
}


def supports(name: str) -> Literature:
    """Cite a work that found what the sub-claim says."""
    return Literature(True, SOURCES[name])


def contradicts(name: str) -> Literature:
    """Cite a work that found otherwise."""
    return Literature(False, SOURCES[name])
